"""Labels: which elements of the tensors of a network exist only together.

Each element of a tensor has labels, and exists as long as all of them are kept. A label is a number; labels that are
tied are the same (union-find). A tensor states its labels as factors: integer tensors that broadcast to its shape. The
output of a convolution has one factor of the shape (1, channels, 1, 1); its weight has two, for outputs and inputs; and
the queries of an attention have one of the shape (1, heads, 1, features). A dimension without a factor is whole: it
cannot lose an index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

FIXED = 0
"""The label of what cannot be removed."""

Factors = tuple[Tensor, ...]


@dataclass(frozen=True)
class Value:
    """What is known about a tensor.

    Args:
        shape: its shape for the example.
        factors: the labels of its elements.
        weight: the name of the parameter that it is a rearrangement of, if it is one.
    """

    shape: tuple[int, ...]
    factors: Factors = ()
    weight: str | None = None

    def along(self, dim: int) -> Factors:
        """The factors that depend on a dimension."""
        return tuple(factor for factor in self.factors if factor.shape[dim] > 1)

    def moved(self, shape: Sequence[int], move: Callable[[Tensor], Tensor]) -> Value:
        """The result of an operation that only moves elements."""
        return Value(tuple(shape), tuple(map(move, self.factors)), self.weight)


def dims_of(factor: Tensor) -> list[int]:
    """The dimensions that a factor depends on."""
    return [dim for dim, size in enumerate(factor.shape) if size > 1]


def vector_along(dim: int, ndim: int, vector: Tensor) -> Tensor:
    """A vector along one of several dimensions, of which the others have size one."""
    return vector.reshape([-1 if each == dim else 1 for each in range(ndim)])


def distinct(labels: Tensor) -> list[int]:
    """The labels of a tensor, each once, in order."""
    return sorted(set(labels.flatten().tolist()))


class Labels:
    """Sets of labels that are tied, and those that are fixed, with the reasons."""

    def __init__(self) -> None:
        self._parents = torch.zeros(1, dtype=torch.int64)
        self._fixed: list[tuple[Tensor, str]] = []

    def __len__(self) -> int:
        return len(self._parents)

    def new(self, number: int) -> Tensor:
        """New labels, in a row."""
        first = len(self._parents)
        labels = torch.arange(first, first + number)
        self._parents = torch.cat([self._parents, labels])
        return labels

    def roots(self, labels: Tensor) -> Tensor:
        """One label for each set of tied ones."""
        while True:
            above = self._parents[labels]
            if torch.equal(above, labels):
                return labels
            labels = above

    def tie(self, one: Tensor, other: Tensor, reason: str = "") -> None:
        """Tie labels, element by element. Those that meet `FIXED` are fixed, for a reason."""
        one, other = (one + torch.zeros_like(other)).flatten(), (other + torch.zeros_like(one)).flatten()
        while True:
            one, other = self.roots(one), self.roots(other)
            differ = one != other
            if not bool(differ.any()):
                return
            low, high = torch.minimum(one[differ], other[differ]), torch.maximum(one[differ], other[differ])
            if bool((fixed := low == FIXED).any()):
                self.fix(high[fixed], reason)
                low, high = low[~fixed], high[~fixed]
            one, other = low, high
            self._parents.scatter_reduce_(0, high, low, "amin")

    def fix(self, labels: Tensor, reason: str) -> None:
        """Let nothing with these labels be removed."""
        self._fixed.append((labels.flatten(), reason))

    def snapshot(self) -> tuple[Tensor, int]:
        """What is tied and fixed so far, for `restore`."""
        return self._parents.clone(), len(self._fixed)

    def restore(self, snapshot: tuple[Tensor, int]) -> None:
        """Forget what was tied and fixed after a snapshot, and labels that are new."""
        self._parents, number = snapshot
        del self._fixed[number:]

    def fixed_since(self, snapshot: tuple[Tensor, int], labels: Tensor) -> bool:
        """Whether some of these labels were fixed after a snapshot."""
        fixed = [self.roots(each) for each, _ in self._fixed[snapshot[1] :]]
        return bool(fixed) and bool(torch.isin(self.roots(labels), torch.cat(fixed)).any())

    def settled(self) -> tuple[Tensor, dict[int, str]]:
        """For each label its set, which is `FIXED` for those that are fixed; and why sets are fixed."""
        roots = self.roots(torch.arange(len(self)))
        is_fixed, reasons = torch.zeros(len(self), dtype=torch.bool), dict[int, str]()
        is_fixed[FIXED] = True
        for labels, reason in self._fixed:
            found = roots[labels]
            for root in distinct(found[~is_fixed[found]]):
                reasons[root] = reason
            is_fixed[found] = True
        return torch.where(is_fixed[roots], FIXED, roots), reasons

    def joined(self, factor: Tensor, dims: Iterable[int]) -> Tensor:
        """A factor without some dimensions, along which its labels are tied."""
        for dim in dims:
            if factor.shape[dim] > 1:
                self.tie(factor, factor.narrow(dim, 0, 1))
                factor = factor.narrow(dim, 0, 1)
        return factor

    def collapse(self, factors: Iterable[Tensor], dims: Iterable[int], reason: str) -> Factors:
        """The factors without some dimensions, all indices of which stay as long as anything does.

        Labels along these dimensions are tied. A factor that has no other dimension is fixed, for a reason.
        """
        dims, result = list(dims), []
        for factor in factors:
            if set(dims_of(factor)) <= set(dims):
                self.fix(factor, reason)
            else:
                result.append(self.joined(factor, dims))
        return tuple(result)

    def compressed(self, factors: Iterable[Tensor]) -> Factors:
        """The factors with their roots, without dimensions along which the labels are all the same."""
        result = []
        for factor in factors:
            factor = self.roots(factor)
            for dim in dims_of(factor):
                first = factor.narrow(dim, 0, 1)
                if torch.equal(factor, first.expand_as(factor)):
                    factor = first
            if dims_of(factor):
                result.append(factor)
        return tuple(result)
