"""Operations on each element by itself, on single dimensions, and those that are not known."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ..labels import Factors, Value, dims_of, vector_along
from ..propagation import MEETS, Call, Result


def unknown(call: Call) -> Result:
    """An operation that is not in the table may read anything of its arguments."""
    for value in call.values:
        call.fix(value.factors, "is not known, and may mix channels")
    return created(call)


def same(call: Call) -> Result:
    """The first tensor, unchanged or in other memory."""
    value = call.values[0]
    return Value(call.shape, value.factors, value.weight)


def like(call: Call) -> Result:
    """A tensor of the same size with other values."""
    return Value(call.shape, call.values[0].factors)


def elementwise(call: Call) -> Result:
    """The element at each place is computed from those of the arguments at that place."""
    result = combine(call, call.values, call.shape)
    return call.result(result for _ in call.shapes)


def created(call: Call) -> Result:
    return call.result(map(Value, call.shapes))


def filled(call: Call) -> Result:
    """A tensor of one value. It may have any size that the code gives it."""
    ndim, sizes = len(call.shape), enumerate(call.shape)
    return Value(call.shape, tuple(vector_along(dim, ndim, call.labels.new(size)) for dim, size in sizes if size > 1))


def nothing(call: Call) -> Result:
    return None


def aligned(value: Value, ndim: int) -> Value:
    """A tensor with leading dimensions of size one."""
    missing = ndim - len(value.shape)
    if not missing:
        return value
    return Value(
        (1,) * missing + value.shape,
        tuple(factor.reshape((1,) * missing + tuple(factor.shape)) for factor in value.factors),
    )


def along(value: Value, dim: int, ndim: int) -> Value:
    """A vector along one of several dimensions."""
    shape = [value.shape[0] if each == dim else 1 for each in range(ndim)]
    return value.moved(shape, partial(vector_along, dim, ndim))


def combine(call: Call, values: Sequence[Value], shape: tuple[int, ...]) -> Value:
    """Tie the labels of tensors that meet element by element, with broadcasting."""
    values = [aligned(value, len(shape)) for value in values]
    factors: list[Tensor] = []
    for value in values:
        for factor in value.factors:
            others = [other for other in values if other is not value]
            factors += _met(call, factor, others)
    return Value(shape, smallest(factors))


def _met(call: Call, factor: Tensor, others: Sequence[Value]) -> Factors:
    """A factor after it met other tensors: tied to their labels, and whole where they have none."""
    uncovered: set[int] = set()
    for other in others:
        met, left = meet(call, factor, other.factors)
        if met is None:
            return ()
        factor = met
        uncovered |= {dim for dim in dims_of(factor) if dim in left and other.shape[dim] > 1}
    return whole_along(call, factor, uncovered) if uncovered else (factor,)


def whole_along(call: Call, factor: Tensor, dims: set[int]) -> Factors:
    """A factor that meets a tensor that stays whole along some dimensions.

    Inner dimensions are tied: heads can go if their features stay. If heads stay, so do the features of all.
    """
    if dims_of(factor)[0] in dims:
        call.fix((factor,), MEETS)
        return ()
    return (call.labels.joined(factor, sorted(dims)),)


def meet(call: Call, factor: Tensor, others: Factors, where: set[int] | None = None) -> tuple[Tensor | None, set[int]]:
    """Tie a factor to those of another tensor along common dimensions. Return it, and its dimensions that they lack.

    A factor along an inner dimension of another stays whole, and None is returned for it. An example are the features
    of all heads, which are multiplied with the same cosines: heads can go, features cannot.

    Args:
        call: the operation.
        factor: the factor.
        others: the factors of the other tensor.
        where: the dimensions that the tensors have in common; None for all.
    """
    left = set(dims_of(factor))
    for other in others:
        ours, theirs = dims_of(factor), dims_of(other)
        common = set(ours) & set(theirs)
        if not (common if where is None else common & where):
            continue
        left -= set(theirs)
        if set(ours) < set(theirs) and theirs[0] not in ours:
            call.fix((factor,), MEETS)
            call.labels.joined(other, ours)
            return None, set()
        if set(theirs) < set(ours) and ours[0] not in theirs:
            call.fix((other,), MEETS)
            factor = call.labels.joined(factor, theirs)
        else:
            call.tie(factor, other)
    return factor, left & set(dims_of(factor))


def smallest(factors: Sequence[Tensor]) -> Factors:
    """Factors without those that depend on all dimensions of another one, to which they are tied."""
    kept: list[Tensor] = []
    for factor in sorted(factors, key=lambda each: len(dims_of(each))):
        if not any(set(dims_of(each)) <= set(dims_of(factor)) for each in kept):
            kept.append(factor)
    return tuple(kept)


def dimensions(value: Value, dim: int | Sequence[int] | None) -> list[int]:
    """The dimensions that an argument names; all of them for None or an empty list."""
    ndim = len(value.shape)
    if dim is None or (isinstance(dim, Sequence) and not len(dim)):
        return list(range(ndim))
    return [each % ndim for each in ([dim] if isinstance(dim, int) else dim)] if ndim else []


def along_dimension(call: Call) -> Result:
    """Softmax, cumulative sums, sorting: every result depends on a whole row of a dimension."""
    value = call["self"] if "self" in call.arguments else call["input"]
    dims = dimensions(value, call.get("dim", -1))
    return call.result(Value(shape, call.collapse(value.factors, dims)) for shape in call.shapes)


def reduction(call: Call) -> Result:
    """Sums, means, maxima over dimensions."""
    value = call["self"]
    dims = dimensions(value, call.get("dim"))
    factors = call.collapse(value.factors, dims)
    results = []
    for shape in call.shapes:
        keeps = len(shape) == len(value.shape)
        results.append(Value(shape, factors if keeps else tuple(_without(each, dims) for each in factors)))
    return call.result(results)


def _without(factor: Tensor, dims: Sequence[int]) -> Tensor:
    for dim in sorted(dims, reverse=True):
        factor = factor.squeeze(dim)
    return factor


def spatial(call: Call) -> Result:
    """Pooling and interpolation: each channel by itself, over the dimensions behind it."""
    value = call["self"] if "self" in call.arguments else call["input"]
    ndim = len(value.shape)
    first = {"1d": 1, "2d": 2, "3d": 3}.get(str(call.node.target).partition(".")[2].partition(".")[0][-2:], ndim - 2)
    factors = call.collapse(value.factors, list(range(ndim - first, ndim)))
    return call.result(Value(shape, factors) for shape in call.shapes)


def inner_graph(call: Call) -> Result:
    """A part of the network in a graph of its own, such as what runs without gradients."""
    args = list(call["args"])
    modules = [each for each in args if isinstance(each, torch.fx.GraphModule)]
    if len(modules) != 1:
        return unknown(call)
    inputs = args[args.index(modules[0]) + 1 :]
    return call.propagation.run_graph(modules[0], inputs, call.rules)
