"""Optimal Brain Surgeon, layer by layer (Hassibi & Stork, 1993; SparseGPT, Frantar & Alistarh, 2023).

Pure functions of the weight matrix of a layer and of the Hessian of its outputs' squared error, `H = 2/n X X^T`. A
weight has the shape (groups, outputs, inputs), a Hessian (groups, inputs, inputs): the groups of a convolution are
independent of each other.

Removing weight `w` of input `j`, and changing the other weights of its output in the best way, costs
`w^2 / (2 [H^-1]_jj)`. All outputs share `H`. So inputs are visited in one order for all of them, and what an output
loses at an input is made up for by the inputs that follow.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

BLOCK = 128
"""The inputs that are visited before the weights of all later inputs are changed, in one product."""
TRIANGLE = 256
"""The rows of a triangular matrix that are computed at once. Only so many are ever in memory twice."""

Choose = Callable[[slice, Tensor], Tensor]
"""`choose(inputs, scores)` marks what is pruned of some neighbouring inputs, from their scores at that moment."""


def damped(hessian: Tensor, damping: float = 0.01) -> Tensor:
    """The Hessian in float64, with a share of the mean of its diagonal added to the diagonal."""
    result = hessian.to(torch.float64, copy=True)
    add_damping(result, damping)
    return result


def add_damping(hessian: Tensor, damping: float) -> Tensor:
    """Add a share of the mean of its diagonal to the diagonal of a Hessian, in place. Return what is added."""
    diagonal = hessian.diagonal(dim1=-2, dim2=-1)
    added = damping * diagonal.mean(-1, keepdim=True)
    added = torch.where(diagonal.mean(-1, keepdim=True) > 0, added, 1.0)  # a layer whose inputs are all zero
    diagonal += added
    return added


def saliency(weight: Tensor, inverse_diagonal: Tensor) -> Tensor:
    """`w^2 / [H^-1]_jj`: twice the error of the outputs if a weight is removed, and the others make up for it."""
    return weight.square() / inverse_diagonal.unsqueeze(-2)


def squared_error(change: Tensor, hessian: Tensor) -> float:
    """The mean squared error of the outputs, summed over them, if the weights change: `tr(D H D^T) / 2`."""
    return float((change @ hessian).mul_(change).sum() / 2)


class InverseRoot:
    """The upper triangular `U` with `U^T U = H^-1`, for a damped Hessian. It takes the Hessian's place in memory.

    Row i of it is that of the inverse Hessian of the inputs from i on, divided by the root of its diagonal. With
    `H = R R^T` for an upper triangular `R`, it is `R^-1`; the inverse of `H` is never computed.

    Args:
        hessian: the Hessian. Its memory is used for `factor`.
        damping: the share of the mean of its diagonal that is added to the diagonal.
    """

    def __init__(self, hessian: Tensor, damping: float = 0.01) -> None:
        self.added = add_damping(hessian, damping)
        factorize(hessian, self.added)
        invert_triangle(hessian)
        self.factor = hessian

    def inverse_diagonal(self) -> Tensor:
        """The diagonal of `H^-1`."""
        norms: Tensor = torch.linalg.vector_norm(self.factor, dim=-2)
        return norms.square()

    def squared_error(self, change: Tensor) -> float:
        """`squared_error` with the Hessian before damping."""
        roots = torch.linalg.solve_triangular(self.factor, change, upper=True, left=False)
        errors = torch.linalg.vector_norm(roots, dim=(-2, -1)).square()
        damping = torch.linalg.vector_norm(change, dim=(-2, -1)).square() * self.added.squeeze(-1)
        return float((errors - damping).clamp_(min=0).sum() / 2)


def factorize(matrix: Tensor, damping: Tensor) -> None:
    """Replace a positive definite matrix by the upper triangular `R` with `R R^T` equal to it, in place.

    What is below the diagonal is left as it is. If rounding makes a part indefinite, it is damped once more.
    """
    size = matrix.shape[-1]
    for start in reversed(range(0, size, TRIANGLE)):
        here, before = slice(start, min(start + TRIANGLE, size)), slice(0, start)
        corner = cholesky_from_the_end(matrix[..., here, here], damping)
        matrix[..., here, here] = corner
        if start:
            column = matrix[..., before, here]
            column.copy_(torch.linalg.solve_triangular(corner.mT, column, upper=False, left=False))
            matrix[..., before, before].baddbmm_(column, column.mT, alpha=-1)


def cholesky_from_the_end(matrix: Tensor, damping: Tensor) -> Tensor:
    """The upper triangular `R` with `R R^T = matrix`, for a small matrix."""
    reverse = matrix.flip(-1, -2)
    diagonal = reverse.diagonal(dim1=-2, dim2=-1)
    while True:
        lower, failed = torch.linalg.cholesky_ex(reverse)
        if not failed.any():
            root: Tensor = lower.flip(-1, -2)
            return root
        if not (damping > 0).all():
            raise ValueError("the Hessian of a layer is singular: give a larger damping=")
        diagonal += damping * (failed > 0).unsqueeze(-1)
        damping = 2 * damping


def invert_triangle(matrix: Tensor) -> None:
    """Replace an upper triangular matrix by its inverse, in place, and what is below the diagonal by zeros."""
    size = matrix.shape[-1]
    for start in range(0, size, TRIANGLE):
        here, before = slice(start, min(start + TRIANGLE, size)), slice(0, start)
        corner = matrix[..., here, here]
        inverse = torch.linalg.solve_triangular(corner, torch.eye(corner.shape[-1]).to(corner), upper=True)
        corner.copy_(inverse)
        if start:
            column = matrix[..., before, here]
            column.copy_(matrix[..., before, before] @ column @ -inverse)
            matrix[..., here, before] = 0


def prune_columns(weight: Tensor, factor: Tensor, choose: Choose, every: int = BLOCK) -> Tensor:
    """Prune a weight in place, input by input, and change the weights of later inputs to make up for it.

    Args:
        weight: the weight.
        factor: that of the `InverseRoot`.
        choose: marks what is pruned of the next `every` inputs.
        every: how many inputs are chosen from at a time.

    Returns:
        Marks of what is pruned.
    """
    inputs = weight.shape[-1]
    roots = factor.diagonal(dim1=-2, dim2=-1)
    pruned = torch.zeros_like(weight, dtype=torch.bool)
    step = max(every, BLOCK // every * every)
    for start in range(0, inputs, step):
        end = min(start + step, inputs)
        here = weight[..., start:end]
        losses = torch.zeros_like(here)
        for i in range(start, end):
            if (i - start) % every == 0:
                place = slice(i, min(i + every, end))
                scores = weight[..., place].square() / roots[:, None, place].square()
                pruned[..., place] = choose(place, scores)
            loss = weight[..., i] / roots[:, None, i] * pruned[..., i]
            losses[..., i - start] = loss
            here[..., i - start :] -= loss[..., None] * factor[:, i, None, i:end]
        here.masked_fill_(pruned[..., start:end], 0)
        weight[..., end:].baddbmm_(losses, factor[:, start:end, end:], alpha=-1)
    return pruned


def remove_inputs(weight: Tensor, hessian: Tensor, kept: Tensor) -> Tensor:
    """Remove inputs from all outputs, and change the weights of the others so that the error is the least.

    Args:
        weight: the weight.
        hessian: the damped Hessian.
        kept: for each group the inputs that are left, a boolean tensor of the shape (groups, inputs).
    """
    result = torch.zeros_like(weight)
    for group, left in enumerate(kept):
        own, everything = hessian[group][left][:, left], hessian[group][:, left]
        if left.any():
            answer = torch.cholesky_solve((weight[group].double() @ everything).mT, torch.linalg.cholesky(own))
            result[group][:, left] = answer.mT.to(weight.dtype)
    return result


# Choices.


def as_many_as(marks: Tensor, *, per_output: bool = False) -> Choose:
    """Of the inputs at hand, prune as many weights as are marked there: those with the lowest scores.

    The marks say how pruning is spread over the inputs, from scores before anything was changed. Which weights they
    are is decided when it is their turn. With `per_output` each output loses as many as are marked in it.
    """

    def choose(inputs: slice, scores: Tensor) -> Tensor:
        here = marks[..., inputs]
        if per_output:
            return lowest_of_rows(scores, here.sum(-1))
        return lowest_of_rows(scores.reshape(1, -1), here.sum().reshape(1)).view_as(scores)

    return choose


def exactly(marks: Tensor) -> Choose:
    """Prune what is marked."""
    return lambda inputs, scores: marks[..., inputs]


def with_fixed(choose: Choose, zeros: Tensor, stay: Tensor) -> Choose:
    """Prune weights that are zero already before all others, and never those that stay."""

    def chosen(inputs: slice, scores: Tensor) -> Tensor:
        first, last = zeros[..., inputs], stay[..., inputs]
        marks = choose(inputs, scores.masked_fill(first, -1.0).masked_fill(last, torch.inf))
        return (marks | first) & ~last

    return chosen


def n_of_m(number: int) -> Choose:
    """Keep the highest `number` of the inputs at hand, in each output."""

    def choose(inputs: slice, scores: Tensor) -> Tensor:
        least = torch.full(scores.shape[:-1], scores.shape[-1] - number, device=scores.device)
        return lowest_of_rows(scores, least)

    return choose


def lowest_of_rows(scores: Tensor, numbers: Tensor) -> Tensor:
    """Mark the lowest `numbers[...]` scores along the last axis. Of equal scores the earlier ones are marked."""
    order = scores.argsort(dim=-1, stable=True)
    first = torch.arange(scores.shape[-1], device=scores.device) < numbers[..., None]
    return torch.zeros_like(first).scatter_(-1, order, first)
