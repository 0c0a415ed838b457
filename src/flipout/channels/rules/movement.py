"""Operations that move elements: other shapes, orders and parts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..labels import FIXED, Factors, Value, dims_of
from ..propagation import Call, Result
from .elementwise import aligned, combine, dimensions, unknown


def permute(call: Call) -> Result:
    value, ndim = call["self"], len(call.shape)
    name = str(call.node.target)
    if "permute" in name:
        order = [dim % ndim for dim in call["dims"]]
    elif name.startswith(("aten.transpose", "aten.swap")):
        order = list(range(ndim))
        one, other = (call[key] % ndim for key in list(call.arguments)[1:3])
        order[one], order[other] = order[other], order[one]
    else:  # t, numpy_T, mT
        order = [*range(ndim - 2), ndim - 1, ndim - 2] if ndim > 1 else [0]
    return value.moved(call.shape, lambda factor: factor.permute(order))


def reshape(call: Call) -> Result:
    """Dimensions are joined and divided. Each joined or divided run of dimensions is looked at by itself."""
    value = call["self"]
    before, after = value.shape, call.shape
    if 0 in before:
        return Value(after)
    runs = list(_runs(before, after))

    def move(factor: Tensor) -> Tensor:
        sizes: list[int] = []
        for old, new in runs:
            if any(factor.shape[dim] > 1 for dim in old):
                factor = factor.expand([before[dim] if dim in old else size for dim, size in enumerate(factor.shape)])
                sizes += [after[dim] for dim in new]
            else:
                sizes += [1] * len(new)
        return factor.reshape(sizes)

    moved = value.moved(after, move)
    return Value(after, call.labels.compressed(moved.factors), value.weight)


def _runs(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Divide the dimensions of two shapes into the shortest runs of the same number of elements."""
    runs, one, other = [], 0, 0
    while one < len(before) or other < len(after):
        first, second = one, other
        one, other = min(one + 1, len(before)), min(other + 1, len(after))
        while (left := math.prod(before[first:one])) != (right := math.prod(after[second:other])):
            if (left < right and one < len(before)) or other >= len(after):
                one += 1
            else:
                other += 1
        runs.append((list(range(first, one)), list(range(second, other))))
    return runs


def expand(call: Call) -> Result:
    return Value(call.shape, aligned(call["self"], len(call.shape)).factors)


def repeat(call: Call) -> Result:
    """`x.repeat(2, 1, 3)`. A dimension without labels has none after it."""
    repeats = call["repeats"]

    def move(factor: Tensor) -> Tensor:
        return factor.repeat([times if size > 1 else 1 for times, size in zip(repeats, factor.shape, strict=True)])

    return Value(call.shape, tuple(map(move, aligned(call["self"], len(repeats)).factors)))


def repeat_interleave(call: Call) -> Result:
    value, times, dim = call["self"], call["repeats"], call.get("dim")
    if not isinstance(times, int) or dim is None:
        return unknown(call)
    return Value(call.shape, tuple(interleaved(factor, times, dim) for factor in value.factors))


def interleaved(factor: Tensor, times: int, dim: int) -> Tensor:
    return factor.repeat_interleave(times, dim) if factor.shape[dim] > 1 else factor


def flip(call: Call) -> Result:
    """Flipping and rolling: the same for the labels, where there are some along a dimension."""
    value = call["self"]
    dims = dimensions(value, call["dims"])
    if "roll" in str(call.node.target):
        shifts = [call["shifts"]] if isinstance(call["shifts"], int) else list(call["shifts"])
        if len(shifts) != len(dims):
            return unknown(call)
        pairs = list(zip(shifts, dims, strict=True))

        def move(factor: Tensor) -> Tensor:
            for shift, dim in pairs:
                factor = factor.roll(shift, dim)
            return factor

        return value.moved(call.shape, move)
    return value.moved(call.shape, lambda factor: factor.flip(dims))


def slice_(call: Call) -> Result:
    value, ndim = call["self"], len(call.shape)
    dim, start, end, step = (call.get(key) for key in ("dim", "start", "end", "step"))
    dim, size = (dim or 0) % ndim, value.shape[(dim or 0) % ndim]
    chosen = range(*slice(start, end, step).indices(size))
    if len(chosen) == size:
        return Value(call.shape, value.factors, value.weight)
    factors = _part(call, value, dim, chosen)
    return Value(call.shape, factors)


def _part(call: Call, value: Value, dim: int, chosen: range) -> Factors:
    """The labels of a part of a dimension.

    The code of the network names where the part begins and ends. If it is one of several equal parts, as of a tensor
    that is cut in half, all of them have to lose the same places. Otherwise the dimension stays whole.
    """
    along = value.along(dim)
    alone = [each for each in along if dims_of(each) == [dim]]
    others = tuple(each for each in value.factors if not any(each is one for one in alone))
    factors = list(call.collapse(others, [dim], "takes a part of it"))
    size, length = value.shape[dim], len(chosen)
    is_chunk = chosen.step == 1 and length and size % length == 0 and chosen.start % length == 0 and length > 1
    for each in alone:
        if is_chunk:
            parts = each.flatten().view(-1, length)
            call.tie(parts, parts[:1])
            factors.append(each.narrow(dim, chosen.start, length))
        else:
            call.fix((each,), "takes a part of it")
    return tuple(factors)


def select(call: Call) -> Result:
    value = call["self"]
    dim = call["dim"] % len(value.shape)
    factors = call.collapse(value.factors, [dim], "takes a part of it")
    return Value(call.shape, tuple(each.squeeze(dim) for each in factors))


def split(call: Call) -> Result:
    """Parts of a dimension, each with its range."""
    value = call["self"]
    dim = call.get("dim", 0) % len(value.shape)
    results, start = [], 0
    if "unbind" in str(call.node.target):
        factors = call.collapse(value.factors, [dim], "takes a part of it")
        return [Value(shape, tuple(each.squeeze(dim) for each in factors)) for shape in call.shapes]
    for shape in call.shapes:
        chosen = range(start, start + shape[dim])
        whole = len(chosen) == value.shape[dim]
        results.append(Value(shape, value.factors if whole else _part(call, value, dim, chosen)))
        start += shape[dim]
    return results


def unsqueeze(call: Call) -> Result:
    value = call["self"]
    dim = call["dim"] % (len(value.shape) + 1)
    return value.moved(call.shape, lambda factor: factor.unsqueeze(dim))


def concatenate(call: Call) -> Result:
    values = [each for each in call["tensors"] if each.shape != (0,)]
    if "stack" in str(call.node.target):
        dim = call.get("dim", 0) % len(call.shape)
        values = [
            Value((*each.shape[:dim], 1, *each.shape[dim:]), tuple(one.unsqueeze(dim) for one in each.factors))
            for each in values
        ]
    dim = call.get("dim", 0) % len(call.shape)
    across = [Value(_with(each.shape, dim, 1), tuple(set(each.factors) - set(each.along(dim)))) for each in values]
    others = combine(call, across, _with(call.shape, dim, 1)).factors
    along = [each.along(dim) for each in values]
    if not any(along):
        return Value(call.shape, others)
    pieces = []
    for value, factors in zip(values, along, strict=True):
        call.fix(factors[1:])
        whole = torch.full(_with([1] * len(call.shape), dim, value.shape[dim]), FIXED)
        pieces.append(factors[0] if factors else whole)
    joint = {each for piece in pieces for each in dims_of(piece)} - {dim}
    sizes = [call.shape[each] if each in joint else 1 for each in range(len(call.shape))]
    expanded = [piece.expand(_with(sizes, dim, piece.shape[dim])) for piece in pieces]
    return Value(call.shape, (*others, torch.cat(expanded, dim)))


def _with(shape: Sequence[int], dim: int, size: int) -> tuple[int, ...]:
    return (*shape[:dim], size, *shape[dim + 1 :])


def pad(call: Call) -> Result:
    """Padding. Channels that are added are fixed."""
    value, amounts = call["self"], list(call["pad"])
    ndim = len(value.shape)
    padded = {ndim - 1 - i // 2 for i, amount in enumerate(amounts) if amount}
    if call.get("mode", "constant") != "constant":
        return Value(call.shape, call.collapse(value.factors, sorted(padded)))

    def move(factor: Tensor) -> Tensor:
        here = [amount if factor.shape[ndim - 1 - i // 2] > 1 else 0 for i, amount in enumerate(amounts)]
        return torch.constant_pad_nd(factor, here, 0)

    return Value(call.shape, tuple(map(move, value.factors)))


def pixel_shuffle(call: Call) -> Result:
    """(..., C * r * r, H, W) -> (..., C, H * r, W * r): the parts of a new channel belong together."""
    value, ndim = call["self"], len(call.shape)
    if math.prod(call.shape[:-3]) != math.prod(value.shape[:-3]):
        return unknown(call)
    dim, channels = ndim - 3, call.shape[-3]
    factors = []
    for factor in call.collapse(value.factors, [ndim - 2, ndim - 1]):
        if factor.shape[dim] > 1:
            factor = call.labels.joined(factor, [each for each in dims_of(factor) if each != dim])
            parts = factor.flatten().view(channels, -1)
            call.tie(parts, parts[:, :1])
            factor = parts[:, 0].reshape(_with([1] * ndim, dim, channels))
        factors.append(factor)
    return Value(call.shape, tuple(each for each in factors if dims_of(each)))


def index(call: Call) -> Result:
    """`x[i, j]` with tensors: the dimensions that are indexed stay whole."""
    value, indices = call["self"], list(call["indices"])
    dims = [dim for dim, each in enumerate(indices) if each is not None]
    for each in indices:
        if each is not None:
            call.fix(each.factors)
    if dims != list(range(dims[0], dims[0] + len(dims))):
        return unknown(call)
    factors = call.collapse(value.factors, dims, "chooses among its indices")
    new = len(call.shape) - (len(value.shape) - len(dims))

    def move(factor: Tensor) -> Tensor:
        return factor.reshape([*factor.shape[: dims[0]], *[1] * new, *factor.shape[dims[0] + len(dims) :]])

    return Value(call.shape, tuple(map(move, factors)))


def index_select(call: Call) -> Result:
    value = call["self"]
    call.fix(call["index"].factors)
    return Value(call.shape, call.collapse(value.factors, dimensions(value, call["dim"]), "chooses among its indices"))


def embedding(call: Call) -> Result:
    """Rows of a matrix that are chosen by data."""
    weight, numbers = call["weight"], call["indices"]
    call.fix(numbers.factors)
    factors = call.collapse(weight.factors, [0], "chooses among its rows")
    leading = len(call.shape) - 1
    return Value(call.shape, tuple(each.reshape((1,) * leading + (-1,)) for each in factors))
