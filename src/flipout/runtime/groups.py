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

from ..kernels import step_loops
from ..numerics import rows_at_once, zero_all_pruned, zero_pruned
from ..weights import Weight

SMALL = 1 << 14
"""Weights of up to this many elements are gathered. (Copying more takes longer than the calls that it saves.)"""

LARGE = 1 << 20
"""A group of gathered weights has at most this many elements, because they are copied."""

ROW = 256
"""The length of the rows of gathered weights."""


def zero_in_place(tensor: Tensor, mask: Tensor) -> None:
    """`zero_pruned`, by a loop in C where there is one for these tensors. The result has the same bits."""
    if step_loops.available() and step_loops.fits(tensor, mask):
        step_loops.zero_pruned(tensor, mask)
    else:
        zero_pruned(tensor, mask)


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
    """Whether there is something to compile a loop for."""

    @property
    def dense(self) -> bool:
        """Whether nothing is pruned."""
        return all(weight.dense for weight in self.weights)

    @cached_property
    def sizes(self) -> Tensor:
        """The number of elements of each original weight tensor, as floats."""
        return torch.tensor([float(weight.size) for weight in self.weights], device="cpu").to(self.values.device)

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

    def store_grads(self) -> None:
        """Write what `load_grads` returned back, after a change of it in place."""

    def zero(self) -> None:
        """Zero the pruned weights where they are, without `load` and `store`."""
        raise NotImplementedError

    def zero_grads(self) -> None:
        """Zero the gradients of pruned weights where they are."""
        raise NotImplementedError

    def adopt(self, holders: Sequence[MutableMapping[str, Tensor]], key: str) -> Tensor:
        """A tensor of each weight, `holders[i][key]`, in the layout of `values`, sharing memory from now on.

        Numbers of whole weights become one number for each element.
        """
        raise NotImplementedError

    def spread(self, numbers: Tensor | Sequence[Tensor]) -> Tensor:
        """One number for each weight, in a shape that is broadcast over the elements of that weight."""
        raise NotImplementedError

    def sums_of_rows(self, rows: Tensor) -> Tensor:
        """The sum of the rows of each weight, from one number for each row of `values`."""
        raise NotImplementedError

    def sums_of_units(self, elements: Tensor) -> Tensor:
        """The sum of the elements of each unit (all under one index of the first dimension), broadcast over it."""
        raise NotImplementedError


class Alone(Group):
    """One weight, in its own memory."""

    def __init__(self, weight: Weight) -> None:
        self.weights = [weight]
        self._loaded: tuple[Tensor, Tensor] | None = None
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
        self.compiles = bool(values.numel())

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
        self._loaded = None if grad is None else (grad, self.like(grad))
        return None if self._loaded is None else self._loaded[1]

    def store_grads(self) -> None:
        if self._loaded is not None:
            grad, laid_out = self._loaded
            if laid_out.data_ptr() != grad.data_ptr():  # in another order of memory than the weight
                grad.copy_(laid_out.view(grad.shape))
        self._loaded = None

    def zero(self) -> None:
        zero_in_place(self.values, self.mask)

    def zero_grads(self) -> None:
        if (grad := self.weights[0].grad) is not None:
            zero_in_place(grad, self.weights[0].bytes)

    def adopt(self, holders: Sequence[MutableMapping[str, Tensor]], key: str) -> Tensor:
        tensor = holders[0][key]
        return self.like(tensor) if tensor.ndim else tensor

    def spread(self, numbers: Tensor | Sequence[Tensor]) -> Tensor:
        return numbers[0]

    def sums_of_rows(self, rows: Tensor) -> Tensor:
        return rows.sum().view(1)

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
    """Several weights in one buffer.

    The buffer is a matrix of short rows. Each weight starts with a row of its own, and its last row is filled up with
    zeros that count as pruned. So a number for each weight is a number for each of its rows, and its sum is the sum of
    the sums of its rows.
    """

    def __init__(self, weights: Sequence[Weight]) -> None:
        self.weights = weights
        self._sources = [weight.local.data for weight in weights]
        device, dtype = self._sources[0].device, self._sources[0].dtype
        self._pointers = [weight.parameter.data_ptr() for weight in weights]
        rows = torch.tensor([-(-local.numel() // ROW) for local in self._sources], device="cpu")
        self._starts = [ROW * int(start) for start in rows.cumsum(0) - rows]
        self._shapes = [local.shape for local in self._sources]
        self._owners = torch.repeat_interleave(torch.arange(len(weights), device="cpu"), rows).to(device)  # of each row
        self._rows = rows.to(device)
        self.values, self._grads = (torch.zeros(len(self._owners), ROW, dtype=dtype, device=device) for _ in range(2))
        self._own_values, self._own_grads = self._views(self.values), self._views(self._grads)
        self.mask = self._joined([weight.bytes for weight in weights])
        self._masks = self._views(self.mask.view(torch.bool))
        for weight, mask in zip(weights, self._masks, strict=True):
            weight.mask = mask
        step = rows_at_once(self.values)
        self.blocks = [slice(start, start + step) for start in range(0, len(self.values), step)]
        self.kind = (dtype, device.type, "gathered", min(len(self.values), 2))
        self._adopted: dict[tuple[int, str], Tensor] = {}
        self._loaded: list[tuple[Tensor, Tensor]] = []

    @cached_property
    def numbering(self) -> tuple[Tensor, Tensor]:
        device = self.values.device
        if all(weight.view.positions.whole for weight in self.weights):
            first = torch.tensor(self._starts, device="cpu").to(device).index_select(0, self._owners)
            starts = torch.arange(len(self.values), device=device) * ROW - first
            return starts.to(torch.int32).view(-1, 1), numbers(ROW, device)
        offsets = self._joined([_wrapped_numbers(weight).to(device) for weight in self.weights])
        return torch.zeros(len(self.values), 1, dtype=torch.int32, device=device), offsets

    def valid(self) -> bool:
        return self._pointers == [weight.parameter.data_ptr() for weight in self.weights] and (
            self.weights[0].parameter.dtype == self.values.dtype
        )

    def load(self) -> None:
        torch._foreach_copy_(self._own_values, self._sources)

    def store(self) -> None:
        torch._foreach_copy_(self._sources, self._own_values)

    def zero(self) -> None:
        zero_all_pruned(self._sources, self._masks)

    def zero_grads(self) -> None:
        pairs = [(w.parameter.grad, mask) for w, mask in zip(self.weights, self._masks, strict=True)]
        zero_all_pruned(
            [grad for grad, _ in pairs if grad is not None], [mask for grad, mask in pairs if grad is not None]
        )

    def load_grads(self) -> Tensor | None:
        grads = [weight.grad for weight in self.weights]
        self._loaded = [(grad, own) for grad, own in zip(grads, self._own_grads, strict=True) if grad is not None]
        if not self._loaded:
            return None
        if len(self._loaded) < len(self.weights):
            self._grads.zero_()
        torch._foreach_copy_([own for _, own in self._loaded], [grad for grad, _ in self._loaded])
        return self._grads

    def store_grads(self) -> None:
        torch._foreach_copy_([grad for grad, _ in self._loaded], [own for _, own in self._loaded])
        self._loaded = []

    def adopt(self, holders: Sequence[MutableMapping[str, Tensor]], key: str) -> Tensor:
        place = id(holders[0]), key
        if place not in self._adopted:
            tensors = [holder[key] for holder in holders]
            joined = torch.stack(tensors) if not tensors[0].ndim else self._joined(tensors)
            for holder, view in zip(holders, joined if joined.ndim == 1 else self._views(joined), strict=True):
                holder[key] = view
            self._adopted[place] = joined
        joined = self._adopted[place]
        return self.spread(joined) if joined.ndim == 1 else joined

    def spread(self, numbers: Tensor | Sequence[Tensor]) -> Tensor:
        joined = numbers if isinstance(numbers, Tensor) else torch.stack(list(numbers))
        return joined.index_select(0, self._owners).view(-1, 1)

    def sums_of_rows(self, rows: Tensor) -> Tensor:
        return torch.segment_reduce(rows, "sum", lengths=self._rows)

    def sums_of_units(self, elements: Tensor) -> Tensor:
        lengths, owners = self._units
        return torch.segment_reduce(elements.view(-1), "sum", lengths=lengths).index_select(0, owners).view_as(elements)

    @cached_property
    def _units(self) -> tuple[Tensor, Tensor]:
        """The length of each unit, the zeros behind a weight being one, and the unit of each element."""
        lengths: list[int] = []
        for weight, start, end in zip(
            self.weights, self._starts, [*self._starts[1:], self.values.numel()], strict=True
        ):
            size, width = weight.mask.numel(), _width(weight)
            lengths += [*[width] * (size // width), end - start - size]
        owners = torch.repeat_interleave(torch.arange(len(lengths), device="cpu"), torch.tensor(lengths, device="cpu"))
        return torch.tensor(lengths, device="cpu").to(self.values.device), owners.to(self.values.device)

    def _joined(self, tensors: Sequence[Tensor]) -> Tensor:
        """Tensors of the weights in the layout of `values`."""
        first = tensors[0]
        joined = torch.zeros(self.values.shape, dtype=first.dtype, device=first.device)
        torch._foreach_copy_(self._views(joined), list(tensors))
        return joined

    def _views(self, joined: Tensor) -> list[Tensor]:
        """The elements of each weight."""
        flat = joined.view(-1)
        pairs = zip(self._starts, self._shapes, strict=True)
        return [flat[start : start + shape.numel()].view(shape) for start, shape in pairs]


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
            if not _gathers(weight, local):
                sets.append((False, [weight]))
            else:
                kind = local.dtype, local.device
                together = open_sets.get(kind)
                if together is None or sum(one.mask.numel() for one in together) + local.numel() > LARGE:
                    together = open_sets[kind] = []
                    sets.append((True, together))
                together.append(weight)
        return [(gathers and len(w) > 1, w) for gathers, w in sets]


def _gathers(weight: Weight, local: Tensor) -> bool:
    shared = [tensor for each in weight.statistics.values() for tensor in each.elements.values()]
    plain = local.is_contiguous() and all(tensor.shape == local.shape for tensor in shared)
    return 0 < local.numel() <= SMALL and weight.view.key is None and plain


def _width(weight: Weight) -> int:
    """The number of elements of a unit: of everything under one index of the first dimension; a vector is one unit."""
    return max(1, weight.mask.shape[1:].numel() if weight.mask.ndim > 1 else weight.mask.numel())


def _wrapped_numbers(weight: Weight) -> Tensor:
    """The number of each element in its original tensor, as int32."""
    elements = weight.view.elements().view(weight.mask.shape)
    return ((elements + (1 << 31)) % (1 << 32) - (1 << 31)).to(torch.int32)


@cache
def numbers(width: int, device: torch.device) -> Tensor:
    """0, 1, 2, ...; all pruners of a process share them."""
    return torch.arange(width, dtype=torch.int32, device=device)
