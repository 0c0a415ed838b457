"""Groups of weights that kernels process together: small ones in one buffer, a large one alone.

A kernel costs a fixed time for each call, on an accelerator a launch. So no kernel runs on one small weight: the small
weights of a device and type are gathered into one buffer, processed in one call, and written back. What belongs to
their elements (masks, the state of statistics, the slots of a form) shares its memory in the same order, so only the
weights and the gradients are copied.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from functools import cache, cached_property

import torch
from torch import Tensor

from ..numerics import BLOCK, rows_at_once
from ..views import Listed
from ..weights import Weight

SMALL = 1 << 15
"""Weights of up to this many elements are gathered. (Copying more takes longer than the calls that it saves.)"""


class Group:
    """Weights that one call of a kernel processes, as matrices where memory allows it, so that one compiled loop serves
    every shape. `Alone` and `Gathered` are the two kinds."""

    weights: Sequence[Weight]
    values: Tensor
    """The values of the weights. Call `load` before reading and `store` after a change."""
    mask: Tensor
    """The masks, as bytes of 0 and 1."""
    blocks: Sequence[slice]
    """Ranges of rows that are processed together in eager mode."""
    kind: tuple[object, ...]
    """What a compiled loop is specialised for. Torch specialises on sizes of 1, so these are kinds of their own."""
    compiles = True
    """Whether a compiled loop is worth it. A few listed elements are not."""

    @property
    def dense(self) -> bool:
        """Whether nothing is pruned."""
        return all(weight.dense for weight in self.weights)

    @cached_property
    def sizes(self) -> Tensor:
        """The number of elements of each original weight tensor, as floats."""
        return torch.tensor([float(weight.size) for weight in self.weights]).to(self.values.device)

    @property
    def numbering(self) -> tuple[Tensor, Tensor]:
        """Starts of rows and offsets in a row: their sum is the number of an element in its original tensor."""
        raise NotImplementedError

    def valid(self) -> bool:
        """Whether the weights are where they were when the group was made."""
        raise NotImplementedError

    def load(self) -> None:
        """Read the weights into `values`."""

    def store(self) -> None:
        """Write `values` into the weights."""

    def load_grads(self) -> Tensor | None:
        """The gradients in the layout of `values`; None if there are none. A missing one counts as 0."""
        raise NotImplementedError

    def store_grads(self, grads: Tensor) -> None:
        """Write the gradients back."""

    def adopt(self, holders: Sequence[MutableMapping[str, Tensor]], key: str) -> Tensor:
        """A tensor of each weight, `holders[i][key]`, in the layout of `values`, sharing memory from now on.

        Numbers of whole weights become one number for each element.
        """
        raise NotImplementedError

    def spread(self, numbers: Tensor | Sequence[Tensor]) -> Tensor:
        """One number for each weight, in a shape that is broadcast over the elements of that weight."""
        raise NotImplementedError

    def sums(self, elements: Tensor) -> Tensor:
        """The sum of the elements of each weight."""
        raise NotImplementedError

    def sums_of_units(self, elements: Tensor) -> Tensor:
        """The sum of the elements of each unit (all under one index of the first dimension), broadcast over it."""
        raise NotImplementedError


class Alone(Group):
    """One weight, in its own memory."""

    def __init__(self, weight: Weight) -> None:
        self.weights = [weight]
        values, mask = weight.local.data, weight.bytes.data
        tensors = [tensor for each in weight.statistics.values() for tensor in each.elements.values()]
        tensors += [tensor for tensor in weight.slots.values() if tensor.ndim]
        self._positions = weight.view.positions
        if all(tensor.is_contiguous() for tensor in (values, mask, *tensors)):
            shape = (len(values) if values.ndim > 1 else 1, -1 if values.numel() else 0)
            values, mask = values.view(shape).data, mask.view(shape).data
        self.values, self.mask = values, mask
        step = rows_at_once(values) if values.numel() else 1
        self.blocks = [slice(start, start + step) for start in range(0, len(values), step)] if values.numel() else []
        self.kind = (values.dtype, values.device.type, *(min(size, 2) for size in values.shape))
        self.compiles = bool(values.numel()) and not isinstance(self._positions, Listed)

    @cached_property
    def numbering(self) -> tuple[Tensor, Tensor]:
        values, where, device = self.values, self._positions, self.values.device
        if values.ndim == 1:  # a vector that is not contiguous: each element is a row
            return where.offsets(device), numbers(1, device)
        offsets = numbers(values.shape[1:].numel(), device) if where.whole else where.offsets(device)
        starts = where.starts(device).view(-1, *[1] * (values.ndim - 1)).data
        return starts, offsets if values.ndim == 2 else offsets.view(values.shape[1:]).data

    def valid(self) -> bool:
        weight = self.weights[0]
        local = weight.local
        same = local.data_ptr() == self.values.data_ptr() and weight.mask.data_ptr() == self.mask.data_ptr()
        return same and local.dtype == self.values.dtype and weight.view.positions is self._positions

    def load_grads(self) -> Tensor | None:
        grad = self.weights[0].grad
        return None if grad is None else self.like(grad)

    def adopt(self, holders: Sequence[MutableMapping[str, Tensor]], key: str) -> Tensor:
        tensor = holders[0][key]
        return self.like(tensor) if tensor.ndim else tensor

    def spread(self, numbers: Tensor | Sequence[Tensor]) -> Tensor:
        return numbers[0]

    def sums(self, elements: Tensor) -> Tensor:
        return elements.sum().view(1)

    def sums_of_units(self, elements: Tensor) -> Tensor:
        return elements.sum(tuple(range(1, elements.ndim)), keepdim=True)

    def like(self, tensor: Tensor) -> Tensor:
        """Another tensor of the weight in the same layout.

        `.data` hides from the compiler that it is a view, which would add guards on its base.
        """
        if tensor.shape == self.values.shape:
            return tensor.data
        return tensor.data.reshape(self.values.shape).data


class Gathered(Group):
    """Several weights in one buffer of one row; also a weight whose elements are not in one tensor."""

    def __init__(self, weights: Sequence[Weight]) -> None:
        self.weights = weights
        locals_ = [weight.local.data for weight in weights]
        self._sizes = [local.numel() for local in locals_]
        self._pointers = [weight.parameter.data_ptr() for weight in weights]
        self._direct = all(weight.view.direct for weight in weights)
        self._flat = [local.view(-1) for local in locals_] if self._direct else []
        self.values = torch.cat([local.reshape(-1) for local in locals_]).view(1, -1)
        self._segments = self.values.view(-1).split(self._sizes)  # type: ignore[no-untyped-call]
        device = self.values.device
        lengths = torch.tensor(self._sizes, device="cpu")
        self._owners = torch.repeat_interleave(torch.arange(len(weights)), lengths).to(device)
        self._lengths = lengths.to(device)
        self.mask = self._joined([weight.bytes for weight in weights])
        for weight, mask in zip(weights, self._views(self.mask.view(torch.bool)), strict=True):
            weight.mask = mask
        self.blocks = [slice(0, 1)]
        self.kind = (self.values.dtype, device.type, "gathered", min(self.values.numel(), 2))
        self._adopted: dict[tuple[int, str], Tensor] = {}
        self._units: tuple[Tensor, Tensor] | None = None
        self._grads: list[Tensor | None] = []

    @cached_property
    def numbering(self) -> tuple[Tensor, Tensor]:
        device = self.values.device
        offsets = torch.cat([_wrapped_numbers(weight) for weight in self.weights]).to(device).view(1, -1)
        return torch.zeros(1, 1, dtype=torch.int32, device=device), offsets

    def valid(self) -> bool:
        return self._pointers == [weight.parameter.data_ptr() for weight in self.weights] and (
            self.weights[0].parameter.dtype == self.values.dtype
        )

    def load(self) -> None:
        sources = self._flat if self._direct else [weight.local.data.reshape(-1) for weight in self.weights]
        torch.cat(sources, out=self.values.view(-1))

    def store(self) -> None:
        if self._direct:
            torch._foreach_copy_(self._flat, self._segments)
        else:
            for weight, segment in zip(self.weights, self._segments, strict=True):
                weight.view.put(weight.parameter, segment.view(weight.mask.shape))

    def load_grads(self) -> Tensor | None:
        self._grads = [weight.grad for weight in self.weights]
        if all(grad is None for grad in self._grads):
            return None
        flat = [
            local.new_zeros(size) if grad is None else grad.reshape(-1)
            for grad, size, local in zip(self._grads, self._sizes, self._segments, strict=True)
        ]
        return torch.cat(flat).view(1, -1)

    def store_grads(self, grads: Tensor) -> None:
        segments = grads.view(-1).split(self._sizes)  # type: ignore[no-untyped-call]
        pairs = [(w, g, s) for w, g, s in zip(self.weights, self._grads, segments, strict=True) if g is not None]
        if self._direct:
            torch._foreach_copy_([g for _, g, _ in pairs], [s.view(g.shape) for _, g, s in pairs])
        else:
            for weight, grad, segment in pairs:
                weight.view.put_grad(weight.parameter, segment.view(grad.shape))
        self._grads = []

    def adopt(self, holders: Sequence[MutableMapping[str, Tensor]], key: str) -> Tensor:
        place = id(holders[0]), key
        if place not in self._adopted:
            tensors = [holder[key] for holder in holders]
            joined = torch.stack(tensors) if not tensors[0].ndim else self._joined(tensors)
            views = list(joined) if not tensors[0].ndim else self._views(joined)
            for holder, view in zip(holders, views, strict=True):
                holder[key] = view
            self._adopted[place] = joined
        joined = self._adopted[place]
        return joined if joined.ndim == 2 else joined.index_select(0, self._owners).view(1, -1)

    def spread(self, numbers: Tensor | Sequence[Tensor]) -> Tensor:
        joined = numbers if isinstance(numbers, Tensor) else torch.stack(list(numbers))
        return joined.index_select(0, self._owners).view(1, -1)

    def sums(self, elements: Tensor) -> Tensor:
        return torch.segment_reduce(elements.view(-1), "sum", lengths=self._lengths)

    def sums_of_units(self, elements: Tensor) -> Tensor:
        if self._units is None:
            widths = [
                width for weight in self.weights for width in [_width(weight)] * (weight.mask.numel() // _width(weight))
            ]
            lengths = torch.tensor(widths, device="cpu")
            owners = torch.repeat_interleave(torch.arange(len(widths)), lengths)
            self._units = lengths.to(elements.device), owners.to(elements.device)
        lengths, owners = self._units
        return torch.segment_reduce(elements.view(-1), "sum", lengths=lengths).index_select(0, owners).view(1, -1)

    def _joined(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([tensor.reshape(-1) for tensor in tensors]).view(1, -1)

    def _views(self, joined: Tensor) -> list[Tensor]:
        segments = joined.view(-1).split(self._sizes)  # type: ignore[no-untyped-call]
        return [segment.view(weight.mask.shape) for segment, weight in zip(segments, self.weights, strict=True)]


class Groups:
    """The weights of a pruner in groups. They are made when they are needed, and again if the weights have moved."""

    def __init__(self, weights: Sequence[Weight]) -> None:
        self._weights = weights
        self._groups: list[Group] = []

    def __iter__(self) -> Iterator[Group]:
        if not self._groups or not all(group.valid() for group in self._groups):
            self._groups = [Gathered(together) if gathers else Alone(together[0]) for gathers, together in self._sets()]
        return iter(self._groups)

    def forget(self) -> None:
        """Make the groups again, because tensors were replaced."""
        self._groups = []

    def _sets(self) -> list[tuple[bool, list[Weight]]]:
        """The weights that go together, and whether they are gathered. A group stays within the cache."""
        sets: list[tuple[bool, list[Weight]]] = []
        open_sets: dict[tuple[torch.dtype, torch.device], list[Weight]] = {}
        for weight in self._weights:
            local = weight.local
            if not weight.view.direct:
                sets.append((True, [weight]))
            elif not _gathers(weight, local):
                sets.append((False, [weight]))
            else:
                kind = local.dtype, local.device
                together = open_sets.get(kind)
                if together is None or sum(one.mask.numel() for one in together) + local.numel() > BLOCK:
                    together = open_sets[kind] = []
                    sets.append((True, together))
                together.append(weight)
        return [(gathers and (len(w) > 1 or not w[0].view.direct), w) for gathers, w in sets]


def _gathers(weight: Weight, local: Tensor) -> bool:
    shared = [tensor for each in weight.statistics.values() for tensor in each.elements.values()]
    plain = local.is_contiguous() and all(tensor.shape == local.shape for tensor in shared)
    return 0 < local.numel() <= SMALL and weight.view.key is None and plain


def _width(weight: Weight) -> int:
    """The number of elements of a unit: of everything under one index of the first dimension; a vector is one unit."""
    return max(1, weight.mask.shape[1:].numel() if weight.mask.ndim > 1 else weight.mask.numel())


def _wrapped_numbers(weight: Weight) -> Tensor:
    """The number of each element in its original tensor, as int32."""
    elements = weight.view.elements().flatten()
    return ((elements + (1 << 31)) % (1 << 32) - (1 << 31)).to(torch.int32)


@cache
def numbers(width: int, device: torch.device) -> Tensor:
    """0, 1, 2, ...; all pruners of a process share them."""
    return torch.arange(width, dtype=torch.int32, device=device)
