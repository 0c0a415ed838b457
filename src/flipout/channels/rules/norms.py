"""Norms: over single channels, groups of channels, or all of them."""

from __future__ import annotations

from ..labels import Value, dims_of
from ..propagation import Call, Result
from .elementwise import along, combine


def batch_norm(call: Call) -> Result:
    """Each channel by itself, with its own factor, shift and statistics."""
    value = call["input"]
    names = ("weight", "bias", "running_mean", "running_var")
    return call.result([_per_channel(call, value, names), *map(Value, call.shapes[1:])])


def _per_channel(call: Call, value: Value, names: tuple[str, ...]) -> Value:
    others = [along(each, 1, len(value.shape)) for name in names if (each := call.get(name)) is not None]
    return combine(call, [value, *others], value.shape)


def instance_norm(call: Call) -> Result:
    value = call["input"]
    places = list(range(2, len(value.shape)))
    kept = Value(value.shape, call.collapse(value.factors, places))
    return _per_channel(call, kept, ("weight", "bias", "running_mean", "running_var"))


def layer_norm(call: Call) -> Result:
    """Every result depends on all channels."""
    value = call["input"]
    first = len(value.shape) - len(call["normalized_shape"])
    for name in ("weight", "bias"):
        if (each := call.get(name)) is not None:
            call.fix(each.factors)
    result = Value(value.shape, call.collapse(value.factors, list(range(first, len(value.shape)))))
    return call.result([result, *map(Value, call.shapes[1:])])


def group_norm(call: Call) -> Result:
    """The channels of a group depend on each other. A group goes as a whole."""
    value, groups = call["input"], call["num_groups"]
    factors = call.collapse(value.factors, list(range(2, len(value.shape))))
    for factor in factors:
        if factor.shape[1] > 1:
            if groups == 1:
                call.fix((factor,))
            else:
                rows = factor.movedim(1, -1).reshape(-1, groups, factor.shape[1] // groups)
                call.tie(rows, rows[:, :, :1])
    kept = tuple(factor for factor in factors if groups > 1 or factor.shape[1] == 1)
    result = _per_channel(call, Value(value.shape, kept), ("weight", "bias"))
    return Value(value.shape, tuple(factor for factor in result.factors if dims_of(factor)))


def prelu(call: Call) -> Result:
    """A slope for all channels, or for each."""
    value, slopes = call["self"], call["weight"]
    if len(value.shape) < 2 or slopes.shape in ((), (1,)):
        return Value(value.shape, value.factors)
    return _per_channel(call, value, ("weight",))
