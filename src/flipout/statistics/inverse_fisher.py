"""The inverse of the empirical Fisher matrix, block by block: the second order of Optimal Brain Surgeon.

Optimal Brain Surgeon (Hassibi and Stork, 1993) prunes the weight whose removal costs the least when the others make up
for it. With the Hessian `H` of the loss, removing `q` costs `w_q^2 / (2 [H^-1]_qq)`. WoodFisher (Singh and Alistarh,
2020) takes the empirical Fisher for `H`, the mean of `g g^T` over gradients `g`, in blocks of weights that follow each
other (Sec. 3), with a damping on its diagonal. There the inverse is built by a rank-one update for each gradient; here
the blocks are summed and solved, which is the same matrix.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..numerics import wide
from .base import Place, Statistic

AT_ONCE = 1 << 22
"""Blocks are solved together up to this many numbers of their matrices."""

TINY = 1e-12
"""The least damping, for weights that never had a gradient."""


class InverseFisher(Statistic):
    """The diagonal of the inverse Fisher of the weights that are kept, from their latest gradients.

    The Fisher is the mean over the gradients of training steps, and the damping is relative to the mean of its
    diagonal. So neither the size of a batch nor the scale of the loss matters: a gradient that is a mean over more
    examples makes the whole matrix smaller, damping included.

    Args:
        gradients: the number of latest gradients.
        block: the number of weights of a block.
        damping: what is added to the diagonal, relative to its mean.
    """

    shared = ("recent", "count")
    only_for_prunings = True

    def __init__(
        self, weight: Tensor, place: Place, *, gradients: int = 64, block: int = 50, damping: float = 0.01
    ) -> None:
        super().__init__(weight, place)
        self.block, self.damping = block, damping
        self._read: tuple[tuple[int, int], Tensor] | None = None  # in events alone, for its memory
        self.state["recent"] = torch.zeros(gradients, *weight.shape, dtype=wide(weight).dtype, device=weight.device)
        self.state["count"] = torch.zeros((), dtype=torch.int64, device="cpu")

    def loaded(self) -> None:
        self._read = None

    def before(self, weight: Tensor, grad: Tensor | None) -> None:
        self._read = None
        if grad is not None:
            recent, count = self.state["recent"], self.state["count"]
            recent[int(count) % len(recent)] = grad
            count += 1

    def value(self, weight: Tensor, step: int) -> Tensor:
        """The inverse is computed once for an event, which reads it several times."""
        if weight.shape != self.state["recent"].shape[1:]:
            raise ValueError("the inverse Fisher is that of whole weights: read it within pruner.expanded()")
        moment = int(self.state["count"]), weight._version
        if self._read is None or self._read[0] != moment:
            diagonal = inverse_diagonal(self._kept(weight != 0), self.block, self.damping)
            self._read = moment, diagonal.view_as(weight)
        return self._read[1]

    def compensation(self, weight: Tensor, kept: Tensor) -> Tensor:
        """The change of the weights that stay, `kept`, that makes up best for those that go."""
        gradients, self._read = self._kept(weight != 0), None
        change = compensation(gradients, wide(weight).flatten(), kept.flatten(), self.block, self.damping)
        return change.view_as(weight).to(weight.dtype)

    def _kept(self, alive: Tensor) -> Tensor:
        """The gradients so far, one in a row, without those of weights that are pruned by now; at first one of 0."""
        count = min(max(1, int(self.state["count"])), len(self.state["recent"]))
        return (self.state["recent"][:count] * alive).flatten(1)


def fisher_blocks(gradients: Tensor, block: int, damping: float) -> Iterator[tuple[slice, Tensor]]:
    """The damped blocks of the Fisher `mean(g g^T)`, some at a time, each time with the weights that they are of.

    The last block is filled up with weights without gradient.
    """
    number, size = gradients.shape
    squares = gradients.square().sum() / number / (gradients != 0).any(0).sum().clamp_min(1)
    added = (damping * squares).clamp_min(TINY) * torch.eye(block, dtype=gradients.dtype, device=gradients.device)
    together = max(1, AT_ONCE // block**2) * block
    for start in range(0, size, together):
        part = gradients[:, start : start + together]
        rows = torch.nn.functional.pad(part, (0, -part.shape[1] % block)).view(number, -1, block).transpose(0, 1)
        yield slice(start, min(size, start + together)), rows.mT @ rows / number + added


def inverse_diagonal(gradients: Tensor, block: int, damping: float) -> Tensor:
    """The diagonal of the inverse of the damped Fisher, one number for each weight."""
    found = gradients.new_empty(gradients.shape[1])
    for where, fisher in fisher_blocks(gradients, block, damping):
        inverse = torch.cholesky_inverse(_cholesky(fisher))
        found[where] = inverse.diagonal(dim1=-2, dim2=-1).reshape(-1)[: where.stop - where.start]
    return found


def compensation(gradients: Tensor, weight: Tensor, kept: Tensor, block: int, damping: float) -> Tensor:
    """The change of the kept weights `K` that, with the others `Q` at 0, has the least `delta^T F delta`.

    `F_KK delta_K = F_KQ w_Q`: all weights of an event go together. For one weight it is the change of Optimal Brain
    Surgeon, `-w_q [F^-1]_q / [F^-1]_qq`.
    """
    change = torch.zeros_like(weight)
    gone = torch.where(kept, 0, weight)
    for where, fisher in fisher_blocks(gradients, block, damping):
        stay = _in_blocks(kept[where], block).to(fisher.dtype)
        rest = (fisher @ _in_blocks(gone[where], block).unsqueeze(-1)) * stay.unsqueeze(-1)
        among = fisher * stay.unsqueeze(-1) * stay.unsqueeze(-2) + torch.diag_embed(1 - stay)
        solved = torch.cholesky_solve(rest, _cholesky(among)).squeeze(-1) * stay
        change[where] = solved.reshape(-1)[: where.stop - where.start]
    return change


def _cholesky(matrices: Tensor) -> Tensor:
    """Without a check, which would wait for the device: a damped matrix is positive. NaN shows in the scores."""
    factor: Tensor = torch.linalg.cholesky_ex(matrices).L
    return factor


def _in_blocks(flat: Tensor, block: int) -> Tensor:
    return torch.nn.functional.pad(flat, (0, -len(flat) % block)).view(-1, block)
