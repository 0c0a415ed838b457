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

Choose = Callable[[slice, Tensor], Tensor]
"""`choose(inputs, scores)` marks what is pruned of some neighbouring inputs, from their scores at that moment."""


def damped(hessian: Tensor, damping: float = 0.01) -> Tensor:
    """The Hessian in float64, with a share of the mean of its diagonal added to the diagonal."""
    result = hessian.double()
    diagonal = result.diagonal(dim1=-2, dim2=-1)
    added = damping * diagonal.mean(-1, keepdim=True)
    diagonal += torch.where(added > 0, added, 1.0)  # a layer whose inputs are all zero
    return result


def inverse(hessian: Tensor) -> Tensor:
    """The inverse of a positive definite matrix."""
    return torch.cholesky_inverse(torch.linalg.cholesky(hessian))


def saliency(weight: Tensor, inverse_diagonal: Tensor) -> Tensor:
    """`w^2 / [H^-1]_jj`: twice the error of the outputs if a weight is removed, and the others make up for it."""
    return weight.double().square() / inverse_diagonal.unsqueeze(-2)


def squared_error(change: Tensor, hessian: Tensor) -> float:
    """The mean squared error of the outputs, summed over them, if the weights change: `tr(D H D^T) / 2`."""
    change = change.double()
    return float(((change @ hessian.double()) * change).sum() / 2)


def prune_columns(weight: Tensor, hessian_inverse: Tensor, choose: Choose, every: int = BLOCK) -> tuple[Tensor, Tensor]:
    """Prune a weight input by input, and change the weights of later inputs to make up for it.

    Args:
        weight: the weight.
        hessian_inverse: the inverse of the damped Hessian.
        choose: marks what is pruned of the next `every` inputs.
        every: how many inputs are chosen from at a time.

    Returns:
        The new weight, and marks of what is pruned.
    """
    weight = weight.clone()
    inputs = weight.shape[-1]
    # Row i of the factor is that of the inverse Hessian of the inputs from i on, divided by the root of its diagonal.
    factor = torch.linalg.cholesky(hessian_inverse, upper=True).to(weight.dtype)
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
        weight[..., end:] -= losses @ factor[:, start:end, end:]
    return weight, pruned


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
