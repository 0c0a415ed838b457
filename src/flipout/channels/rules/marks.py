"""The rules of marks: what the elements of a result depend on. `FLOW` has one for each rule of labels.

A `Value` has marks as its only factor. One without is a source, which counts as input: the input itself, a parameter
that is used as data, a random number, a constant in the code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx

from ..labels import Value, vector_along
from ..propagation import Call, Result, Rule, tensors_in
from . import contractions, elementwise, movement, norms
from .table import rule_of

PRODUCTS = (torch.ops.aten.mul.Tensor, torch.ops.aten.mul_.Tensor, torch.ops.aten.multiply.Tensor)


class _Saturated(torch.autograd.Function):
    """1 for every positive number, in both directions, so that the numbers of paths cannot overflow."""

    @staticmethod
    def forward(ctx: Any, marks: Tensor) -> Tensor:
        return (marks > 0).to(marks.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return (gradients[0] > 0).to(gradients[0].dtype)


def marks_of(value: Value) -> Tensor:
    return value.factors[0] if value.factors else torch.ones([1] * len(value.shape))


def result_of(call: Call, marks: Sequence[Tensor], *, source: bool) -> Result:
    """A result, or several, that depends on all of some marks, which broadcast to its shape."""
    total = (sum(marks[1:], marks[0]) + float(source),) if marks else ()
    return call.result(Value(shape, total) for shape in call.shapes)


def everything(call: Call) -> Result:
    """Every element of the results depends on every element of the arguments."""
    marks = [each.sum() for value in call.values for each in value.factors]
    total = (sum(marks[1:], marks[0]) + float(_has_source(call)),) if marks else ()
    return call.result(Value(shape, tuple(each.reshape([1] * len(shape)) for each in total)) for shape in call.shapes)


def _has_source(call: Call) -> bool:
    """Whether a source is among the arguments, or random numbers are drawn."""
    is_random = torch.Tag.nondeterministic_seeded in getattr(call.node.target, "tags", ())
    return is_random or any(not value.factors for value in call.values)


def pointwise(call: Call) -> Result:
    """The element at each place depends on those of the arguments at that place."""
    ndim = len(call.shape)
    marks = [marks_of(elementwise.aligned(value, ndim)) for value in call.values if value.factors]
    return result_of(call, marks, source=_has_source(call))


def multiplied(call: Call) -> Result:
    """A product. Where a factor is 0 for every input, the result does not depend on the other one."""
    other = call.get("other")
    if len(call.node.args) < 2 or not isinstance(other, Value):
        return pointwise(call)
    ndim, nodes = len(call.shape), (call.node.args[0], call.node.args[1])
    values = [elementwise.aligned(value, ndim) for value in (call["self"], other)]
    marks = [marks_of(value) for value in values]
    sizes = (marks[0] + marks[1]).shape
    nonzero = [_nonzero(call, *each, sizes) for each in zip(nodes, values, strict=True)]
    return result_of(call, [marks[0] * nonzero[1], marks[1] * nonzero[0]], source=False)


def _nonzero(call: Call, node: Any, value: Value, sizes: Sequence[int]) -> Tensor:
    """Where a factor may be something other than 0, in the resolution of some sizes."""
    may_vary = marks_of(value).detach() > 0
    is_known = value.weight is not None or not bool(may_vary.all())
    if not is_known or (numbers := cast(Any, call.propagation).numbers(node)) is None:
        return torch.ones([1] * len(sizes))
    found = (numbers.detach().cpu() != 0).reshape(value.shape)
    for dim, size in enumerate(sizes):
        if size == 1:
            found = found.any(dim, keepdim=True)
    known: Tensor = found | may_vary if value.weight is None else found
    return known.float()


def batch_norm(call: Call) -> Result:
    """Each channel by itself. A factor of 0 leaves the shift alone."""
    value, weight, node = call["input"], call.get("weight"), call.node
    marks = marks_of(value)
    if weight is not None and len(node.args) > 1:
        sizes = [value.shape[1]]
        factor = _nonzero(call, node.args[1], Value(weight.shape, (), weight.weight), sizes)
        marks = marks * vector_along(1, marks.ndim, factor)
    return call.result([Value(call.shape, (marks,)), *map(Value, call.shapes[1:])])


def prelu(call: Call) -> Result:
    """A slope is no input, as a bias is none."""
    return Value(call.shape, call["self"].factors)


def norm(call: Call) -> Result:
    """A norm that mixes everything but examples, or everything along its last dimensions."""
    value, shape = call["input"], call.get("normalized_shape")
    first = 1 if shape is None else len(value.shape) - len(shape)
    marks = call.collapse(value.factors, range(first, len(value.shape)))
    return call.result([Value(call.shape, marks), *map(Value, call.shapes[1:])])


def product(one: Tensor, other: Tensor, *, weighted: bool) -> Tensor:
    """The marks of a matrix product. Of two tensors that are both computed, every element counts."""
    if not weighted:
        return one.sum(-1, keepdim=True) + other.sum(-2, keepdim=True)
    size = other.shape[-2] if one.shape[-1] == 1 else one.shape[-1]  # a size of 1 stands for any, also for 0
    return one.expand(*one.shape[:-1], size) @ other.expand(*other.shape[:-2], size, other.shape[-1])


def linear(call: Call) -> Result:
    value, weight = call["input"], call["weight"]
    if len(weight.shape) != 2 or len(value.shape) < 2:
        return everything(call)
    marks = product(marks_of(value), marks_of(weight).T, weighted=weight.weight is not None)
    return result_of(call, [marks], source=False)


def matmul(call: Call) -> Result:
    return _product(call, *contractions.multiplied(call))


def added_product(call: Call) -> Result:
    """`addmm` and `baddbmm`. A vector that is added is a bias."""
    names = ("mat1", "mat2") if "mat1" in call.arguments else ("batch1", "batch2")
    added = call["self"]
    is_bias = len(added.shape) == 1 and added.weight is not None
    return _product(call, call[names[0]], call[names[1]], () if is_bias else (added,))


def _product(call: Call, one: Value, other: Value, added: Sequence[Value] = ()) -> Result:
    if min(len(one.shape), len(other.shape)) < 2:
        return everything(call)
    weighted = one.weight is not None or other.weight is not None
    marks = [product(marks_of(one), marks_of(other), weighted=weighted), *map(marks_of, added)]
    return result_of(call, marks, source=False)


def attention(call: Call) -> Result:
    """All keys and values of a head count for each of its queries."""
    query, key, value, mask = (call[name] for name in ("query", "key", "value", "attn_mask"))
    if len(query.shape) < 3 or query.shape[:-2] != key.shape[:-2]:
        return everything(call)
    marks = [marks_of(query).sum(-1, keepdim=True), marks_of(key).sum((-1, -2), keepdim=True)]
    marks += [marks_of(value).sum(-2, keepdim=True)]
    marks += [each.sum() for each in mask.factors] if isinstance(mask, Value) else []
    return result_of(call, marks, source=False)


def convolution(call: Call) -> Result:
    value, weight, groups = call["input"], call["weight"], call.get("groups", 1)
    dim = len(value.shape) - len(weight.shape) + 1
    if weight.weight is None:
        return everything(call)
    others = [each for each in range(len(value.shape)) if each != dim]
    inputs = call.labels.joined(marks_of(value), others).flatten().expand(value.shape[dim]).reshape(groups, -1, 1)
    kernel = marks_of(weight)
    matrix = kernel.reshape(kernel.shape[:2]).expand(weight.shape[:2])
    matrix = matrix.reshape(groups, -1, weight.shape[1])
    outputs = (matrix.mT if contractions.is_transposed(call) else matrix) @ inputs
    return result_of(call, [vector_along(dim, len(call.shape), outputs)], source=False)


def part(value: Value, dim: int, chosen: range) -> Value:
    """The result of taking a part of a dimension."""
    shape = (*value.shape[:dim], len(chosen), *value.shape[dim + 1 :])
    index = torch.tensor(list(chosen), dtype=torch.int64)
    return value.moved(shape, lambda each: each.index_select(dim, index) if each.shape[dim] > 1 else each)


def slice_(call: Call) -> Result:
    value = call["self"]
    dim = (call.get("dim") or 0) % len(value.shape)
    chosen = range(*slice(call.get("start"), call.get("end"), call.get("step")).indices(value.shape[dim]))
    return part(value, dim, chosen)


def select(call: Call) -> Result:
    value = call["self"]
    dim = call["dim"] % len(value.shape)
    index = call["index"] % value.shape[dim]
    return part(value, dim, range(index, index + 1)).moved(call.shape, lambda each: each.squeeze(dim))


def split(call: Call) -> Result:
    value, results, start = call["self"], [], 0
    dim = call.get("dim", 0) % len(value.shape)
    apart = "unbind" in str(call.node.target)
    for shape in call.shapes:
        length = 1 if apart else shape[dim]
        found = part(value, dim, range(start, start + length))
        results.append(found.moved(shape, lambda each: each.squeeze(dim)) if apart else found)
        start += length
    return results


def concatenate(call: Call) -> Result:
    values = [each for each in call["tensors"] if each.shape != (0,)]
    if not any(value.factors for value in values):
        return Value(call.shape)
    dim = call.get("dim", 0) % len(call.shape)
    pieces = [marks_of(value) for value in values]
    if "stack" in str(call.node.target):
        pieces, lengths = [piece.unsqueeze(dim) for piece in pieces], [1] * len(pieces)
    else:
        lengths = [value.shape[dim] for value in values]
    sizes = [max(piece.shape[each] for piece in pieces) for each in range(len(call.shape))]
    expanded = [
        piece.expand([length if each == dim else size for each, size in enumerate(sizes)])
        for piece, length in zip(pieces, lengths, strict=True)
    ]
    return Value(call.shape, (torch.cat(expanded, dim),))


def inner_graph(call: Call) -> Result:
    graphs = [each for each in call["args"] if isinstance(each, fx.GraphModule)]
    return elementwise.inner_graph(call) if len(graphs) == 1 else everything(call)


def moving(rule: Rule) -> Rule:
    """A rule of labels that serves marks too. Other tensors among its arguments choose what is moved."""

    def apply(call: Call) -> Result:
        first, *others = call.values
        result = rule(call)
        if not first.factors:
            return everything(call) if others else result
        if any(not value.factors for value in tensors_in(result)):
            return everything(call)
        chosen = [each.sum() for value in others for each in value.factors] + [
            float(any(not v.factors for v in others))
        ]
        return _mapped(result, lambda marks: marks + sum(chosen)) if others else result

    return apply


def _mapped(result: Result, change: Callable[[Tensor], Tensor]) -> Result:
    """A result, or several, with other marks."""
    if isinstance(result, Value):
        return Value(result.shape, tuple(map(change, result.factors)), result.weight)
    return [_mapped(each, change) for each in result] if isinstance(result, list | tuple) else result


FLOW: dict[Rule, Rule] = {
    elementwise.same: moving(elementwise.same),
    elementwise.elementwise: pointwise,
    elementwise.like: elementwise.created,
    elementwise.created: elementwise.created,
    elementwise.filled: elementwise.created,
    elementwise.nothing: elementwise.nothing,
    elementwise.along_dimension: moving(elementwise.along_dimension),
    elementwise.reduction: moving(elementwise.reduction),
    elementwise.spatial: moving(elementwise.spatial),
    elementwise.inner_graph: inner_graph,
    movement.permute: moving(movement.permute),
    movement.reshape: moving(movement.reshape),
    movement.unsqueeze: moving(movement.unsqueeze),
    movement.expand: moving(movement.expand),
    movement.repeat: moving(movement.repeat),
    movement.repeat_interleave: moving(movement.repeat_interleave),
    movement.flip: moving(movement.flip),
    movement.pad: moving(movement.pad),
    movement.index: moving(movement.index),
    movement.index_select: moving(movement.index_select),
    movement.embedding: moving(movement.embedding),
    movement.slice_: slice_,
    movement.select: select,
    movement.split: split,
    movement.concatenate: concatenate,
    contractions.linear: linear,
    contractions.matmul: matmul,
    contractions.added_product: added_product,
    contractions.attention: attention,
    contractions.convolution: convolution,
    norms.batch_norm: batch_norm,
    norms.instance_norm: norm,
    norms.group_norm: norm,
    norms.layer_norm: norm,
    norms.prelu: prelu,
}
"""For the rule of labels of an operation, that of marks. Any other may mix everything that it reads."""


def flow_rule(node: fx.Node) -> Rule:
    """The rule of an operation."""
    rule = multiplied if node.target in PRODUCTS else FLOW.get(rule_of(node), everything)
    return lambda call: saturated(rule(call))


def saturated(result: Result) -> Result:
    """A result with marks of 0 and 1. The mask of a weight has no others."""
    if isinstance(result, Value) and result.weight is not None:
        return result
    if isinstance(result, list | tuple):
        return [saturated(each) for each in result]
    return _mapped(result, _Saturated.apply)
