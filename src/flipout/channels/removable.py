"""Which channels a network can lose while it is trained: those that nothing reads, by the masks alone.

A channel without readers has no influence on the loss, in training mode too, and its gradient is exactly 0. So the rest
of the network trains on as if the channel were there. Weights that produce it may still be kept: as long as the
training depends on them, because a later event ranks them, the channel stays too. Channels that are constant, because
all weights that produce them are pruned, stay: the bias of their norm is still trained, and at borders with zero
padding they are not constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .comparison import examples_in
from .copies import UnsupportedNetworkError, has_hooks
from .flow import connections
from .graph import ChannelGraph, Indices
from .resize import Attributes, changed_sizes, restated_in
from .trial import removable


@dataclass(frozen=True)
class Remainder:
    """What is left of a network.

    Args:
        tensors: the indices that stay of each parameter and buffer that loses channels, by name.
        multiply_adds: the multiply-adds of all layers for one example, and those that are left.
    """

    tensors: dict[str, Indices]
    multiply_adds: tuple[int, int]

    @property
    def share(self) -> float:
        """The share of the multiply-adds that is left."""
        before, after = self.multiply_adds
        return after / before if before else 1.0


class RemovableChannels:
    """Finds the channels that a network can lose. It is recorded and tried once, and masks are looked at after that.

    Args:
        model: the network, with all of its channels; it is not changed.
        args: the positional arguments of a call, with any batch size.
        kwargs: its keyword arguments.
    """

    def __init__(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> None:
        if any(map(has_hooks, model.modules())):
            raise UnsupportedNetworkError("it has hooks, which may look at whole tensors: remove them first")
        arguments = args, dict(kwargs or {})
        self._graph = ChannelGraph.of(model, *arguments)
        found = removable(model, self._graph, *arguments)
        self._stays, self._follows, self.problem = ~found.sets, found.follows, found.problem
        self._batch = max(1, examples_in(arguments))
        self._shapes = {name: tensor.shape for name, tensor in model.named_parameters()}

    def __deepcopy__(self, memo: dict[int, Any]) -> RemovableChannels:
        return self  # it holds no weights

    @property
    def weights(self) -> dict[str, torch.Size]:
        """The weights that read channels, and their shapes."""
        return {name: self._shapes[name] for name in self._graph.read}

    @torch.no_grad()
    def remainder(self, masks: Mapping[str, tuple[Tensor, Indices]], *, keeps_weights: bool = False) -> Remainder:
        """Find what is left of the network.

        Args:
            masks: for each weight that is pruned, by its name, the mask of what is left of it, and the indices of that;
                others count as a whole.
            keeps_weights: whether no weight that is kept is removed, even if it influences nothing.
        """
        connections = {name: self._connections(name, *masks[name]) for name in masks if name in self._graph.tensors}
        stays = self._stays.clone()
        for name, matrix in connections.items() if keeps_weights else ():
            for dim, sets in enumerate(self._graph.tensors[name][: matrix.ndim]):
                stays[sets[matrix.movedim(dim, 0).unsqueeze(-1).flatten(1).any(1).cpu()]] = True
        kept = self._graph.kept(connections, stays)
        every, left = (self._graph.multiply_adds(each) // self._batch for each in (None, kept))
        return Remainder(self._graph.remainder(kept), (every, left))

    def _connections(self, name: str, mask: Tensor, where: Indices) -> Tensor:
        """Between which of its channels a weight is not pruned: a matrix, or a stack of them."""
        stacked = mask.ndim == 3 and bool(self._graph.tensors[name][2].any())
        read = mask if stacked or mask.ndim < 3 else connections(mask).view(mask.shape[:2])
        for dimension, index in enumerate(where[: read.ndim]):
            if index is not None:
                shape = [*read.shape[:dimension], self._shapes[name][dimension], *read.shape[dimension + 1 :]]
                read = read.new_zeros(shape).index_copy_(dimension, index.to(read.device), read)
        return read

    def attributes(self, model: nn.Module, indices: Mapping[str, Indices]) -> Attributes:
        """The attributes of the whole network that change if these indices are left."""
        kept = torch.ones(self._graph.size, dtype=torch.bool)
        for name, each in indices.items():
            for sets, index in zip(self._graph.tensors[name], each, strict=True):
                if index is not None:
                    gone = torch.ones_like(sets, dtype=torch.bool).index_fill_(0, index.cpu(), False)
                    kept[sets[gone]] = False
        return restated_in(model, changed_sizes(self._graph, kept), self._follows)
