"""Constant channels: those that have one value, whatever the input of the network is.

A layer need not read a constant channel: what that adds to its outputs can be added to its bias. At borders with zero
padding that is not so, but there one constant channel can stand for all others. What nothing reads after that can be
removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.conv import _ConvNd

from .copies import independent_copy
from .flow import Flow
from .graph import ChannelGraph
from .labels import Value
from .propagation import Call, Result, Rule, tensors_in
from .record import Recording, record
from .rules import contractions, norms
from .rules.marks import flow_rule, marks_of, saturated
from .rules.table import rule_of
from .values import Values

ROUNDING = 64
"""Numbers that differ by this many units of rounding count as one."""


@torch.no_grad()
def without_constants(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> nn.Module | None:
    """A copy of a network of which no layer reads constant channels that can be removed then; None if there are none.

    Args:
        model: the network, in evaluation mode; it is not changed.
        args: the positional arguments of a call.
        kwargs: its keyword arguments.
    """
    recording = record(model, args, kwargs, functional=True)
    graph, found = ChannelGraph.from_recording(recording), readers(model, recording)
    parameters = dict(model.named_parameters())
    nonzero = {name: parameters[name] != 0 for name in graph.read if name in parameters}
    for reader in found:
        if reader.weight in nonzero:
            nonzero[reader.weight].index_fill_(reader.dim, reader.foldable.nonzero().flatten(), False)
    kept = graph.kept(nonzero)
    copy = independent_copy(model)
    changed = [reader.fold(copy, ~kept[graph.tensors[reader.weight][reader.dim]]) for reader in found]
    return copy if any(changed) else None


@dataclass(frozen=True)
class Reader:
    """A layer that reads constant channels.

    Args:
        weight: the name of its weight.
        has_bias: whether it has a bias.
        dim: the dimension of the weight that reads.
        constants: the value of each channel; NaN for those that are not constant.
        bordered: whether zeros are padded to what it reads.
    """

    weight: str
    has_bias: bool
    dim: int
    constants: Tensor
    bordered: bool

    @property
    def foldable(self) -> Tensor:
        """The channels that need not be read: all constant ones, or all but the largest at borders."""
        found = ~self.constants.isnan()
        if self.bordered and bool((sizes := self.constants.nan_to_num(0.0).abs()).any()):
            found[sizes.argmax()] = False
        return found

    def fold(self, model: nn.Module, removable: Tensor) -> bool:
        """Let the layer of a network not read channels that can be removed then; return whether it did before."""
        folded = self.foldable & removable
        module = model.get_submodule(self.weight.rpartition(".")[0])
        weight = model.get_parameter(self.weight)
        turned = weight.detach().double().transpose(self.dim, 0)
        columns = turned.reshape(*turned.shape[:2], -1).clone()  # inputs, outputs, places
        folded &= columns.flatten(1).any(1).cpu()
        if not bool(folded.any()):
            return False
        values = torch.where(folded, self.constants, 0.0).to(columns)
        if self.bordered and bool(values.any()):
            largest = int(self.constants.nan_to_num(0.0).abs().argmax())
            columns[largest] += torch.einsum("i,iok->ok", values / self.constants[largest].to(columns), columns)
        elif bool(values.any()):
            shift = torch.einsum("i,iok->o", values, columns)
            if not self.has_bias and not isinstance(module, nn.Linear | _ConvNd):
                return False
            if self.has_bias:
                shift += model.get_parameter(f"{self.weight.rpartition('.')[0]}.bias".lstrip("."))
            module.bias = nn.Parameter(shift.to(weight), weight.requires_grad)
        columns[folded.to(columns.device)] = 0
        weight.copy_(columns.reshape(turned.shape).transpose(self.dim, 0))
        return True


def readers(model: nn.Module, recording: Recording) -> list[Reader]:
    """The layers of a network that read constant channels, and whose tensors have no other use."""
    return ConstantFlow(model, recording).found


def is_layer(node: fx.Node, recording: Recording) -> bool:
    """Whether an operation is a linear layer or a convolution, the only one that uses its weight and its bias."""
    if node.op != "call_function" or rule_of(node) not in (contractions.linear, contractions.convolution):
        return False
    own = [each for each in node.args[1:3] if each is not None]
    is_own = all(isinstance(each, fx.Node) and each in recording.tensors and len(each.users) == 1 for each in own)
    return is_own and node.args[1].meta["val"].ndim > 1  # type: ignore[union-attr]


class ConstantFlow(Flow):
    """Marks what is not constant: what depends on the input, and what has other values at other places.

    Args:
        model: the network.
        recording: a recorded call of it.
    """

    def __init__(self, model: nn.Module, recording: Recording) -> None:
        self.found: list[Reader] = []
        self.constants: dict[fx.Node, Tensor] = {}
        """For each layer and batch norm the constant channels that it computes, 0 for those that nothing reads, and NaN
        for the others."""
        self.layers = [node for node in recording.graph.nodes if is_layer(node, recording)]
        names = {recording.tensors[node.all_input_nodes[1]] for node in self.layers}
        masks = {name: (each != 0).cpu() for name, each in model.named_parameters() if name in names}
        super().__init__(masks, Values(recording, model))
        inputs = [self._input(node, recording.tensors) for node in recording.graph.find_nodes(op="placeholder")]
        with torch.enable_grad():
            outputs = tensors_in(self.run_graph(recording.module, inputs, self.rule))
            self._add_unread([each.sum() for value in outputs for each in value.factors if each.requires_grad])

    def _add_unread(self, outputs: list[Tensor]) -> None:
        marks = {node: self.values[node].factors[0] for node in self.constants}
        marks = {node: each for node, each in marks.items() if each.requires_grad}  # a norm may come before all layers
        if not outputs or not marks:
            return
        wanted = torch.autograd.grad(outputs, list(marks.values()), allow_unused=True)
        for (node, own), each in zip(marks.items(), wanted, strict=True):
            unread = torch.ones_like(own, dtype=torch.bool) if each is None else each == 0
            self.constants[node][unread.flatten().expand(len(self.constants[node]))] = 0

    def rule(self, node: fx.Node) -> Rule:
        known = flow_rule(node)

        def rule(call: Call) -> Result:
            if node in self.layers and (reader := self._reader(call)) is not None:
                self.found.append(reader)
            result = self._with_places(known(call), self.numbers(node))
            if node in self.layers or rule_of(node) is norms.batch_norm:
                found = constants_of(result, channel_dim(call), self.numbers(node))
                self.constants |= {} if found is None else {node: found}
            return result

        return rule

    def _with_places(self, result: Result, numbers: Any) -> Result:
        """A result in which also what differs from place to place is marked."""
        if isinstance(result, list):
            return [self._with_places(*each) for each in zip(result, numbers or [None] * len(result), strict=True)]
        if not isinstance(result, Value) or not result.factors or result.weight is not None:
            return result
        marks = marks_of(result)
        known = isinstance(numbers, Tensor) and tuple(numbers.shape) == result.shape
        return saturated(Value(result.shape, (marks + (_differs(numbers, marks) if known else 1.0),)))

    def _reader(self, call: Call) -> Reader | None:
        weight, is_linear = call["weight"], rule_of(call.node) is contractions.linear
        constants = constants_of(call["input"], channel_dim(call), self.numbers(call.node.all_input_nodes[0]))
        if call.get("groups", 1) > 1 or constants is None or bool(constants.isnan().all()):
            return None
        transposed = not is_linear and contractions.is_transposed(call)
        bordered = transposed or (not is_linear and _is_padded(call["padding"]))
        assert weight.weight is not None
        return Reader(weight.weight, call.get("bias") is not None, 0 if transposed else 1, constants, bordered)


def channel_dim(call: Call) -> int:
    """The dimension of the channels that a layer or a batch norm reads and computes."""
    ndim = len(call["input"].shape)
    if rule_of(call.node) is contractions.linear:
        return ndim - 1
    return ndim - len(call["weight"].shape) + 1 if rule_of(call.node) is contractions.convolution else 1


def constants_of(value: Result, dim: int, numbers: Any) -> Tensor | None:
    """The constant channels of a tensor along a dimension, NaN for the others; None if they cannot be distinguished."""
    if not isinstance(value, Value) or not isinstance(numbers, Tensor) or not numbers.numel():
        return None
    marks = marks_of(value)
    if marks.numel() != marks.shape[dim]:
        return None
    constant = (marks.flatten() == 0).expand(value.shape[dim])
    first = numbers.detach().movedim(dim, 0).flatten(1)[:, 0] if numbers.ndim > 1 else numbers.detach()
    return torch.where(constant, first.cpu().double(), torch.nan)


def _is_padded(padding: str | int | Sequence[int]) -> bool:
    if isinstance(padding, str):
        return padding == "same"
    return any(padding) if isinstance(padding, Sequence) else padding != 0


def _differs(numbers: Tensor, marks: Tensor) -> Tensor:
    """Where values differ along the dimensions that marks do not tell apart, or are not finite."""
    if numbers.is_complex():
        return torch.ones_like(marks)
    eps = torch.finfo(numbers.dtype).eps if numbers.is_floating_point() else 0.0
    numbers = numbers.detach().cpu().double()
    dims = [dim for dim, size in enumerate(marks.shape) if size == 1]
    low, high = (numbers.amin(dims, keepdim=True), numbers.amax(dims, keepdim=True)) if dims else (numbers, numbers)
    alike = (high - low) <= ROUNDING * eps * torch.maximum(low.abs(), high.abs())
    return (~(alike & high.isfinite() & low.isfinite())).to(marks.dtype)
