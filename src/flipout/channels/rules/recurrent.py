"""Recurrent layers: a hidden unit is a channel, with its rows in the matrices of every gate."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..labels import Value, vector_along
from ..propagation import MEETS, Call, Result


def layers(call: Call) -> Result:
    """`lstm`, `gru`, `rnn_tanh` and `rnn_relu`: (output, states of all layers and directions).

    The states are one tensor. So unit `j` of all layers and directions is one channel.
    """
    value = call["input"] if "input" in call.arguments else call["data"]
    params, biased = list(call["params"]), bool(call["has_biases"])
    directions = 2 if call["bidirectional"] else 1
    each = len(params) // (call["num_layers"] * directions)
    hidden, output = _new_units(call, params[1], params[each - 1] if each % 2 else None)
    _meet_states(call, call["hx"], hidden, output)
    read = _features(call, value)
    for number in range(call["num_layers"]):
        for start in range(number * directions * each, (number + 1) * directions * each, each):
            own = params[start : start + each]
            _cell(call, math.prod(value.shape[:-1]), read, (own[0], own[1]), own[2:4] if biased else [], hidden, output)
            if each % 2:
                _multiply(call, math.prod(value.shape[:-1]), hidden, own[-1], output, 1)
        read = torch.cat([output] * directions)
    results = (torch.cat([output] * directions), output, hidden)
    return [_along_last(shape, units) for shape, units in zip(call.shapes, results, strict=False)]


def cell(call: Call) -> Result:
    """`lstm_cell`, `gru_cell`, `rnn_tanh_cell` and `rnn_relu_cell`: the states after one step."""
    value = call["input"]
    hidden, _ = _new_units(call, call["w_hh"], None)
    _meet_states(call, call["hx"], hidden, hidden)
    biases = [call[name] for name in ("b_ih", "b_hh") if call[name] is not None]
    weights = call["w_ih"], call["w_hh"]
    _cell(call, math.prod(value.shape[:-1]), _features(call, value), weights, biases, hidden, hidden)
    return call.result(_along_last(shape, hidden) for shape in call.shapes)


def _new_units(call: Call, for_state: Value, projection: Value | None) -> tuple[Tensor, Tensor]:
    """Labels of the hidden units, and of the outputs, which are the same unless they are projected."""
    if projection is None:
        units = call.labels.new(for_state.shape[1])
        return units, units
    return call.labels.new(projection.shape[1]), call.labels.new(projection.shape[0])


def _meet_states(call: Call, states: Value | Sequence[Value], hidden: Tensor, output: Tensor) -> None:
    """Tie the units to those of the first states."""
    for state, units in zip([states] if isinstance(states, Value) else states, (output, hidden), strict=False):
        _tie(call, _features(call, state), units)


def _cell(
    call: Call,
    places: int,
    read: Tensor | None,
    weights: tuple[Value, Value],
    biases: Sequence[Value],
    hidden: Tensor,
    output: Tensor,
) -> None:
    """One layer in one direction. The rows of its matrices are those of one gate after the other."""
    gates = weights[1].shape[0] // len(hidden)
    _multiply(call, places, read, weights[0], hidden, gates)
    _multiply(call, places, output, weights[1], hidden, gates)
    for bias in biases:
        _tie(call, _side(bias, 0), hidden.repeat(gates))


def _multiply(call: Call, places: int, read: Tensor | None, weight: Value, units: Tensor, gates: int) -> None:
    """A matrix that reads some labels, and has a row for each gate of each unit."""
    call.count(weight, places)
    _tie(call, _side(weight, 0), units.repeat(gates))
    columns = _side(weight, 1)
    if read is None:
        call.fix(() if columns is None else (columns,), MEETS)
        return
    _tie(call, columns, read)
    if weight.weight is None:
        call.fix((read,), "has a weight that is computed")
    else:
        call.read(weight.weight, read, (1,))


def _tie(call: Call, labels: Tensor | None, units: Tensor) -> None:
    if labels is None:
        call.fix((units,), MEETS)
    else:
        call.tie(labels, units)


def _side(value: Value, dim: int) -> Tensor | None:
    """The labels of a dimension of a weight; None if it has none."""
    return next((factor.flatten() for factor in value.along(dim) if factor.numel() == value.shape[dim]), None)


def _features(call: Call, value: Value) -> Tensor | None:
    """The labels of the last dimension of a tensor; None if it stays whole."""
    last = len(value.shape) - 1
    found = [each.flatten() for each in call.collapse(value.factors, range(last)) if each.shape[last] > 1]
    for other in found[1:]:
        call.tie(found[0], other)
    return found[0] if found else None


def _along_last(shape: tuple[int, ...], units: Tensor) -> Value:
    return Value(shape, (vector_along(len(shape) - 1, len(shape), units),) if len(units) > 1 else ())
