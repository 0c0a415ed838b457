"""Products that are summed over an index: linear layers, convolutions, matrix products, attention."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from ..labels import Factors, Value, dims_of, vector_along
from ..propagation import MEETS, Call, Result
from .elementwise import along, combine, meet, smallest, unknown, whole_along
from .movement import interleaved

ALIGNED = 8
"""How many features of experts go together: 16 bytes in half precision, which products of groups need."""
Names = Sequence[str]
"""A name for each dimension of a tensor. Dimensions of the same name meet."""


def contract(call: Call, one: Value, other: Value, names: tuple[Names, Names, Names]) -> Value:
    """The product of two tensors, summed over the names that the result does not have."""
    ours, theirs, results = names
    space = list(dict.fromkeys((*ours, *theirs)))
    left, right = _placed(one, ours, space), _placed(other, theirs, space)
    summed = {place for place, name in enumerate(space) if name not in results}
    shared = {place for place, name in enumerate(space) if name in ours and name in theirs}
    factors: list[Tensor] = []
    for value, meets in ((left, right), (right, left)):
        for factor in value.factors:
            factors += _contracted(call, factor, value, meets, shared, summed)
    order = [space.index(name) for name in results]
    shape = tuple(max(left.shape[place], right.shape[place]) for place in order)
    return Value(shape, smallest([_chosen(factor, order) for factor in factors]))


def _chosen(factor: Tensor, order: list[int]) -> Tensor:
    """A factor with some of its dimensions, in their order. The others have size one."""
    rest = [dim for dim in range(factor.ndim) if dim not in order]
    return factor.permute(order + rest).reshape([factor.shape[dim] for dim in order])


def _placed(value: Value, names: Names, space: list[str]) -> Value:
    """A tensor in a space with a dimension for each name; in those it does not have, its size is one."""
    own = [names.index(name) if name in names else None for name in space]

    def move(factor: Tensor) -> Tensor:
        order = [place for place in own if place is not None]
        return factor.permute(order).reshape([1 if place is None else factor.shape[place] for place in own])

    shape = tuple(1 if place is None else value.shape[place] for place in own)
    return value.moved(shape, move)


def _contracted(call: Call, factor: Tensor, value: Value, meets: Value, shared: set[int], summed: set[int]) -> Factors:
    met, left = meet(call, factor, meets.factors, shared)
    if met is None:
        return ()
    factor, dims = met, set(dims_of(met))
    uncovered = {dim for dim in left & shared if meets.shape[dim] > 1}
    if uncovered:
        return whole_along(call, factor, uncovered | (dims & summed))
    if not dims & summed:
        return (factor,)
    if dims - summed:
        return (call.labels.joined(factor, sorted(dims & summed)),)
    weight = meets if meets.weight is not None else value
    if weight.weight is None or (meets.weight is not None and value.weight is not None):
        call.fix((factor,), "multiplies two tensors that are both computed")
    else:
        # The same labels are met from both sides, and those of the weight tell where they are.
        call.read(weight.weight, factor, call.dims_with(weight.weight, factor) if weight is value else ())
    return ()


def linear(call: Call) -> Result:
    value, weight = call["input"], call["weight"]
    ndim = len(value.shape)
    batch = [f"b{dim}" for dim in range(ndim - 1)]
    outputs = ["o"] if len(weight.shape) == 2 else []
    call.count(weight, math.prod(value.shape[:-1]))
    result = contract(call, value, weight, ([*batch, "c"], [*outputs, "c"], [*batch, *outputs]))
    return _biased(call, result, call.get("bias"))


def _biased(call: Call, result: Value, bias: Value | None) -> Value:
    return result if bias is None else combine(call, [result, bias], result.shape)


def matmul(call: Call) -> Result:
    return product(call, *multiplied(call))


def multiplied(call: Call) -> tuple[Value, Value]:
    """The tensors of a product. ATen has a name for the second one in each of its operations: `mv(self, vec)`."""
    return call["self"], next(call[name] for name in ("other", "mat2", "vec", "tensor") if name in call.arguments)


def product(call: Call, one: Value, other: Value) -> Value:
    """A matrix product of any number of dimensions, with broadcasting."""
    left, right = len(one.shape), len(other.shape)
    batch = [f"b{place}" for place in range(max(left, right, 2) - 2, 0, -1)]
    ours = [*batch[len(batch) - max(0, left - 2) :], *(["i"] if left > 1 else []), "c"]
    theirs = [*batch[len(batch) - max(0, right - 2) :], "c", *(["j"] if right > 1 else [])]
    results = [*batch, *(["i"] if left > 1 else []), *(["j"] if right > 1 else [])]
    for weight, rest in ((other, one), (one, other)):
        call.count(weight, math.prod(rest.shape) // max(1, rest.shape[-1 if rest is one else -2 if right > 1 else -1]))
    return contract(call, one, other, (ours, theirs, results))


def grouped_product(call: Call) -> Result:
    """Rows of a matrix times the matrix of an expert each: (rows, c) x (experts, c, j). Data choose the experts.

    Features go in groups, because the operation needs aligned rows.
    """
    value, weight = (call[name] for name in list(call.arguments)[:2])
    if len(value.shape) != 2 or len(weight.shape) != 3:
        return unknown(call)
    call.count(weight, value.shape[0] // weight.shape[0])
    one = call.collapse(weight.factors, [0], "chooses among its experts")
    for labels in (each.flatten() for each in one):
        if len(labels) % ALIGNED:
            call.fix((labels,), f"needs a multiple of {ALIGNED} features")
        else:
            call.tie(labels.view(-1, ALIGNED), labels.view(-1, ALIGNED)[:, :1])
    stacked = Value(weight.shape[1:], tuple(each.squeeze(0) for each in one), weight.weight)
    return contract(call, value, stacked, (["i", "c"], ["c", "j"], ["i", "j"]))


def added_product(call: Call) -> Result:
    """`addmm` and `baddbmm`: a product and something that is added to it."""
    names = ("mat1", "mat2") if "mat1" in call.arguments else ("batch1", "batch2")
    result = product(call, call[names[0]], call[names[1]])
    return combine(call, [result, call["self"]], result.shape)


def einsum(call: Call) -> Result:
    equation, values = call["equation"].replace(" ", ""), call["tensors"]
    if "->" not in equation or "." in equation:
        return unknown(call)
    inputs, _, results = equation.partition("->")
    names = inputs.split(",")
    if len(values) != 2 or any(len(set(each)) != len(each) for each in (*names, results)):
        return unknown(call)
    for weight in values:
        call.count(weight, math.prod(call.shape) // max(1, math.prod(weight.shape)))
    return contract(call, values[0], values[1], (names[0], names[1], results))


def attention(call: Call) -> Result:
    """`scaled_dot_product_attention`: the scores of queries and keys, and with them a mean of the values."""
    query, key, value, mask = (call[name] for name in ("query", "key", "value", "attn_mask"))
    heads = len(query.shape) - 3
    if call.get("enable_gqa") and heads >= 0 and query.shape[heads] != key.shape[heads]:
        key, value = (_repeated(each, query.shape[heads] // each.shape[heads], heads) for each in (key, value))
    batch = [f"b{dim}" for dim in range(len(query.shape) - 2)]
    scores = contract(call, query, key, ([*batch, "i", "c"], [*batch, "j", "c"], [*batch, "i", "j"]))
    if isinstance(mask, Value):
        scores = combine(call, [scores, mask], scores.shape)
    last = len(batch) + 1
    scores = Value(scores.shape, call.collapse(scores.factors, [last]))
    value = Value(value.shape, call.collapse(value.factors, [len(batch)]))
    return contract(call, scores, value, ([*batch, "i", "j"], [*batch, "j", "v"], [*batch, "i", "v"]))


def _repeated(value: Value, times: int, dim: int) -> Value:
    shape = list(value.shape)
    shape[dim] *= times
    return Value(tuple(shape), tuple(interleaved(factor, times, dim) for factor in value.factors))


def convolution(call: Call) -> Result:
    value, weight, bias = (call[name] for name in ("input", "weight", "bias"))
    groups, transposed = call.get("groups", 1), is_transposed(call)
    dim = len(value.shape) - len(weight.shape) + 1
    places = [*range(dim + 1, len(value.shape))]
    inputs = [factor for factor in call.collapse(value.factors, places) if factor.shape[dim] > 1]
    batch = tuple(factor for factor in value.factors if not {dim, *places} & set(dims_of(factor)))
    inputs = [call.labels.joined(factor, range(dim)) for factor in inputs]
    kernel = call.collapse(weight.factors, [*range(2, len(weight.shape))])
    first, second = (next((each.flatten() for each in kernel if each.shape[side] > 1), None) for side in (0, 1))
    used = math.prod(value.shape[dim + 1 :]) if transposed else math.prod(call.shape[dim + 1 :])
    call.count(weight, used * math.prod(value.shape[:dim]))
    read = next((each.flatten() for each in inputs), None)
    if groups > 1:
        outputs = _grouped(call, call.shape[dim], groups, (read, first, second), transposed)
    else:
        outputs, own = (second, first) if transposed else (first, second)
        _read_by(call, weight, read, own)
    ndim = len(call.shape)
    factors = [] if outputs is None else [vector_along(dim, ndim, outputs)]
    result = Value(call.shape, (*batch, *factors))
    return _biased(call, result, None if bias is None else along(bias, dim, ndim))


def is_transposed(call: Call) -> bool:
    return "transpose" in str(call.node.target) or bool(call.get("transposed", False))


def _read_by(call: Call, weight: Value, read: Tensor | None, own: Tensor | None) -> None:
    """Tie the inputs of a convolution to those of its weight, which reads them."""
    if read is None or own is None:
        call.fix(tuple(each for each in (read, own) if each is not None), MEETS)
        return
    call.tie(read, own)
    if weight.weight is None:
        call.fix((read,), "has a weight that is computed")
    else:
        call.read(weight.weight, read)


def _grouped(
    call: Call,
    outputs: int,
    groups: int,
    labels: tuple[Tensor | None, Tensor | None, Tensor | None],
    transposed: bool,
) -> Tensor | None:
    """The outputs of a convolution with groups: a group goes as a whole, with its inputs."""
    read, first, second = labels
    if second is not None:
        call.fix((second,), "has groups of that size")
    # The first dimension of the weight has the outputs, or the inputs of a transposed convolution.
    if read is None or first is None:
        call.fix(tuple(each for each in (read, first) if each is not None), MEETS)
        return None
    rows = first.view(groups, -1)
    call.tie(rows, rows[:, :1])
    call.tie(read.view(groups, -1), rows[:, :1])
    return rows[:, :1].repeat_interleave(outputs // groups, 1).flatten() if transposed else first
