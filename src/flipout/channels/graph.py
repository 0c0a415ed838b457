"""The channel graph of a network: which indices of its tensors live and die together, and which of them are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .labels import FIXED, distinct
from .norm_calls import norm_calls
from .propagation import Propagation
from .record import Recording, record
from .rules.table import rule_of

Indices = tuple[Tensor | None, ...]
"""For each dimension of a tensor the indices that stay; None for all of them."""


@dataclass(frozen=True)
class ChannelGraph:
    """The sets of a network's indices. An index of a tensor belongs to one set, and goes with all others of it.

    Args:
        size: the number of sets; some numbers stand for none.
        tensors: for each parameter and buffer, the set of each index of each dimension; `FIXED` for what stays.
        read: for each weight that reads sets, which ones: a flag for each set.
        along: the dimensions of each such weight that they lie along. A set may also be among its outputs, as in a
            residual branch of one layer.
        places: for each weight, how often each of its elements is multiplied for the example.
        reasons: for each tensor, why indices of each dimension are fixed; empty if none is.
        propagation: the labels of all tensors.
        sets: the set of each label.
        norms: for each norm that can lose channels, the dimension of its channels, counted from the last one, and their
            sets. These can be removed only if they are zero.
    """

    size: int
    tensors: Mapping[str, tuple[Tensor, ...]]
    read: Mapping[str, Tensor]
    along: Mapping[str, set[int]]
    places: Mapping[str, int]
    reasons: Mapping[str, tuple[str, ...]]
    propagation: Propagation
    sets: Tensor
    norms: Mapping[str, tuple[int, Tensor]]

    @classmethod
    def of(
        cls, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, *, residual: bool = False
    ) -> ChannelGraph:
        """Record a call of a network and follow its channels. The network is not changed.

        Args:
            model: the network.
            args: the positional arguments of the call.
            kwargs: its keyword arguments.
            residual: whether channels may pass through norms that mix them, such as those of a residual stream.
        """
        return cls.from_recording(record(model, args, kwargs), residual=residual)

    @classmethod
    def from_recording(cls, recording: Recording, *, residual: bool = False) -> ChannelGraph:
        found = Propagation()
        found.run(recording, rule_of, norm_calls(recording) if residual else ())
        sets, why = found.labels.settled()
        read, along = dict[str, Tensor](), dict[str, set[int]]()
        for reading in found.readings:
            flags = read.setdefault(reading.weight, torch.zeros(len(sets), dtype=torch.bool))
            flags[sets[reading.labels]] = True
            every = range(len(found.tensors[reading.weight]))
            along.setdefault(reading.weight, set()).update(every if reading.dims is None else reading.dims)
        raw = found.labels.roots(torch.arange(len(sets)))
        reasons = {
            name: tuple(next((why[root] for root in distinct(raw[dim]) if root in why), "") for dim in dims)
            for name, dims in found.tensors.items()
        }
        tensors = {name: tuple(sets[dim] for dim in dims) for name, dims in found.tensors.items()}
        norms = {path: (dim, sets[labels]) for path, (dim, labels) in found.norms.items() if bool(sets[labels].any())}
        return cls(len(sets), tensors, read, along, found.places, reasons, found, sets, norms)

    @property
    def normed(self) -> Tensor:
        """The sets that norms read, and that can be removed only if they are zero: a flag for each."""
        flags = torch.zeros(self.size, dtype=torch.bool)
        for _, sets in self.norms.values():
            flags[sets] = True
        flags[FIXED] = False
        return flags

    def narrowed(self, kept: Tensor) -> dict[str, int]:
        """The norms that lose channels, with the dimension of the channels."""
        return {path: dim for path, (dim, sets) in self.norms.items() if not bool(kept[sets].all())}

    @torch.no_grad()
    def kept(self, nonzero: Mapping[str, Tensor], stays: Tensor | None = None) -> Tensor:
        """Which sets are needed: those that are fixed, and those that a weight reads for another one that is needed.

        Args:
            nonzero: for each weight, by name, where it is not zero, or the same for its first dimensions; weights that
                are left out count as a whole.
            stays: sets that are needed in any case: a flag for each.
        """
        kept = torch.zeros(self.size, dtype=torch.bool) if stays is None else stays.clone()
        kept[FIXED] = True
        matrices = {name: nonzero[name].cpu() if name in nonzero else None for name in self.read}
        while True:
            before = int(kept.sum())
            for name in reversed(list(self.read)):
                self._add_read(name, matrices[name], kept)
            if int(kept.sum()) == before:
                empty = [dim for dims in self.tensors.values() for dim in dims if len(dim) and not kept[dim].any()]
                if not empty:
                    return kept
                kept[empty[0][0]] = True  # a tensor cannot be without channels

    def _add_read(self, name: str, matrix: Tensor | None, kept: Tensor) -> None:
        """Mark the sets that a weight reads for what is kept of its other dimensions."""
        flags, dims = self.read[name], self.tensors[name]
        for dim, labels in enumerate(dims):
            if dim not in self.along[name] or not bool(flags[labels].any()):
                continue
            if matrix is None:
                others = all(bool(kept[each].any()) for other, each in enumerate(dims) if other != dim)
                needed = torch.full(labels.shape, others)
            else:
                left = matrix
                for other, each in enumerate(dims[: matrix.ndim]):
                    if other != dim:
                        left = left.index_select(other, kept[each].nonzero().flatten())
                if dim < matrix.ndim:
                    needed = left.movedim(dim, 0).unsqueeze(-1).flatten(1).any(1)
                else:  # nothing is known of this dimension
                    needed = torch.full(labels.shape, bool(left.any()))
            kept[labels[needed & flags[labels]]] = True

    def remainder(self, kept: Tensor) -> dict[str, Indices]:
        """What is left of each parameter and buffer that loses something."""
        left = {name: tuple(_index(kept[dim]) for dim in dims) for name, dims in self.tensors.items()}
        return {name: dims for name, dims in left.items() if any(each is not None for each in dims)}

    def multiply_adds(self, kept: Tensor | None = None) -> int:
        """The multiply-adds with weights for the example, of all sets or of those that are kept."""
        total = 0
        for name, places in self.places.items():
            sizes = [len(dim) if kept is None else int(kept[dim].sum()) for dim in self.tensors[name]]
            total += places * int(torch.tensor(sizes).prod())
        return total


def _index(flags: Tensor) -> Tensor | None:
    return None if bool(flags.all()) else flags.nonzero().flatten()
