"""A cut: what is left of a weight in a network that was shrunk, and the kept weights that are not in it any more.

A weight that the mask keeps may have been removed with a channel that nothing reads. Its gradient is exactly 0. Without
shrinking, weight decay, momentum and noise would still change it, and the next prunings would rank it with all others.
So such weights are set aside in a vector that the optimizer trains, but the network does not hold. What belongs to the
weight (mask, statistics, slots) is then one vector for both, in the order of the original tensor: what happens to it is
what would have happened without shrinking.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .positions import Listed, Positions
from .view import View

Indices = tuple[Tensor | None, ...]


class Cut(View):
    """What is left of an original tensor: for each dimension the indices that are there, and elements that are set
    aside.

    Args:
        shape: the shape of the original tensor.
        indices: for each dimension the indices that are left; None for all of them.
        elements: the numbers of the elements that are set aside, ascending.
    """

    def __init__(self, shape: torch.Size, indices: Indices, elements: Tensor | None = None) -> None:
        left = Positions(shape, tuple(indices))
        self.left = left
        self.aside: nn.Parameter | None = None
        """The weights that are set aside, when they are known."""
        self._places: tuple[Tensor, Tensor] | None = None
        if elements is None or not len(elements):
            super().__init__(left)
            return
        self.direct = False
        in_network = left.elements().flatten()
        numbers, order = torch.cat([in_network, elements]).sort()
        where = torch.empty_like(order)
        where[order] = torch.arange(len(order))
        self._places = where[: len(in_network)], where[len(in_network) :]
        self.elements_aside = elements
        super().__init__(Listed.of(shape, numbers))

    @property
    def indices(self) -> Indices:
        return self.left.indices

    # In the network and aside, from all elements that are here, and back.

    def in_network(self, local: Tensor) -> Tensor:
        """The elements that the network holds."""
        if self._places is None:
            return local
        return local.index_select(0, self._places[0].to(local.device)).view(self.left.held)

    def set_aside(self, local: Tensor) -> Tensor:
        """The elements that are set aside."""
        assert self._places is not None
        return local.index_select(0, self._places[1].to(local.device))

    def joined(self, network: Tensor, aside: Tensor) -> Tensor:
        """All elements that are here."""
        assert self._places is not None
        there, out = (places.to(network.device) for places in self._places)
        both = torch.empty(len(there) + len(out), dtype=network.dtype, device=network.device)
        both[there] = network.reshape(-1)
        both[out] = aside
        return both

    def local(self, parameter: Tensor) -> Tensor:
        return parameter if self.aside is None else self.joined(parameter.detach(), self.aside.detach())

    def grad(self, parameter: Tensor) -> Tensor | None:
        if self.aside is None or parameter.grad is None:
            return parameter.grad
        aside = torch.zeros_like(self.aside) if self.aside.grad is None else self.aside.grad
        return self.joined(parameter.grad, aside)

    def put(self, parameter: Tensor, values: Tensor) -> None:
        for holder, own in self.holders(parameter, values):
            holder.data.copy_(own)

    def put_grad(self, parameter: Tensor, values: Tensor) -> None:
        for holder, own in self.holders(parameter, values):
            if holder.grad is not None:
                holder.grad.copy_(own)

    def holders(self, parameter: Tensor, local: Tensor) -> list[tuple[Tensor, Tensor]]:
        if self.aside is None:
            return [(parameter, local)]
        return [(parameter, self.in_network(local)), (self.aside, self.set_aside(local))]

    def shown(self, local: Tensor) -> Tensor:
        return self.in_network(local)

    def merged(self, shown: Tensor, local: Tensor) -> Tensor:
        return shown if self._places is None else self.joined(shown, self.set_aside(local))

    def version(self, parameter: Tensor) -> tuple[int, ...]:
        aside = () if self.aside is None else (self.aside._version, self.aside.data_ptr())
        return (parameter._version, parameter.data_ptr(), *aside)

    def accumulated(self, parameter: Tensor) -> None:
        """Let code that looks at all gradients of the optimizer find some for the weights that are set aside."""
        self.prepare(parameter)

    def prepare(self, parameter: Tensor) -> None:
        """Give the weights that are set aside the gradient that they have in the network: 0, or none."""
        if self.aside is not None:
            self.aside.grad = None if parameter.grad is None else torch.zeros_like(self.aside)

    # From the original tensor, and back.

    def take(self, tensor: Tensor) -> Tensor:
        if self._places is None:
            return take(tensor, self.left)
        return take_elements(tensor, self.positions.elements())

    def gather(self, local: Tensor) -> Tensor:
        """The original tensor; what was removed is 0."""
        full = torch.zeros(self.positions.shape, dtype=local.dtype, device=local.device)
        self.write(full, local)
        return full

    def write(self, full: Tensor, local: Tensor) -> None:
        """Write all elements that are here into a tensor of the original shape."""
        if self._places is None:
            put(full, local, self.left)
        else:
            put_elements(full, local, self.positions.elements())


def take(full: Tensor, where: Positions) -> Tensor:
    """The elements of a tensor at some positions, in the same memory format."""
    held = full
    for dimension, index in enumerate(where.indices):
        if index is not None:
            held = held.index_select(dimension, index.to(full.device))
    return held.contiguous(memory_format=_memory_format(full))


def put(full: Tensor, held: Tensor, where: Positions) -> None:
    """Write elements back into the tensor that they were taken from, in place."""
    cut = [(dimension, index) for dimension, index in enumerate(where.indices) if index is not None]
    if not cut:
        full.copy_(held)
        return
    (dimension, index), *others = cut
    index = index.to(full.device)
    if others:
        rest = tuple(None if number == dimension else each for number, each in enumerate(where.indices))
        slab = full.index_select(dimension, index)
        put(slab, held, Positions(slab.shape, rest))
        held = slab
    full.index_copy_(dimension, index, held)


def elements_outside(mask: Tensor, where: Positions) -> Tensor:
    """The numbers of the elements that a mask keeps and that are not at some positions, ascending."""
    outside = mask.clone(memory_format=torch.contiguous_format)
    put(outside, torch.zeros(where.held, dtype=torch.bool, device=mask.device), where)
    return outside.flatten().nonzero().flatten().cpu()


def take_elements(full: Tensor, elements: Tensor) -> Tensor:
    """Elements of a tensor by their numbers, as a vector."""
    return full.reshape(-1).index_select(0, elements.to(full.device))


def put_elements(full: Tensor, values: Tensor, elements: Tensor) -> None:
    """Write elements back by their numbers, in place."""
    indices = torch.unravel_index(elements.to(full.device), full.shape)
    full.index_put_(tuple(indices), values.to(full.dtype))


def _memory_format(tensor: Tensor) -> torch.memory_format:
    for dimensions, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if tensor.ndim == dimensions and tensor.is_contiguous(memory_format=layout) and not tensor.is_contiguous():
            return layout
    return torch.contiguous_format
