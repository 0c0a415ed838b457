"""Lossless compaction: the same network with fewer channels."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.graph_module import _USER_PRESERVED_ATTRIBUTES_KEY as PRESERVED
from torch.nn.modules.conv import _ConvNd

from ..graph.comparison import Example, as_example, batch_of, inputs_like, own_copy, precision, unlike
from ..graph.rebuild import Builder
from ..graph.recognition import analyze
from ..graph.tracing import evaluate, trace
from ..graph.tracing_errors import UntraceableError, first_line
from ..text_table import table


@dataclass(frozen=True)
class LayerChange:
    """A Linear or convolution before and after: inputs, outputs, and weights, zeros included; all 0 if it went."""

    name: str
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    weights: tuple[int, int]


@dataclass(frozen=True)
class Compaction:
    """What compaction did to each layer; printed as a table."""

    layers: tuple[LayerChange, ...]

    @property
    def weights(self) -> tuple[int, int]:
        """Of all these layers, before and after."""
        return sum(layer.weights[0] for layer in self.layers), sum(layer.weights[1] for layer in self.layers)

    @property
    def channels(self) -> tuple[int, int]:
        """Outputs of all these layers, before and after."""
        return sum(layer.outputs[0] for layer in self.layers), sum(layer.outputs[1] for layer in self.layers)

    def __str__(self) -> str:
        def change(pair: tuple[int, int]) -> str:
            return f"{pair[0]:,} -> {pair[1]:,}"

        rows = [(layer.name, *map(change, (layer.inputs, layer.outputs, layer.weights))) for layer in self.layers]
        rows.append(("total", "", change(self.channels), change(self.weights)))
        return table(("layer", "inputs", "outputs", "weights"), rows)


def compact(model: nn.Module, example_input: Example, *, fixed_size: bool = False) -> nn.Module:
    """A network with fewer channels and, in evaluation mode, the same outputs to rounding.

    What goes: every channel that nobody reads, and every constant one, whose value is folded into what follows. The
    model that is given stays as it is. What is not understood is left alone, and named in `notes` of the result; what
    was done to each layer is in its `compaction`.

    Args:
        model: the network; it must run on the example.
        example_input: what the network is called with; neither values nor batch size matter.
        fixed_size: let only inputs of the example's size go in, but for the batch. Then channels go too that do not
            depend on the input but differ at the borders, where zero padding met a constant.
    """
    example, original = as_example(example_input), own_copy(model)
    small, notes = smaller(original, example, fixed_size=fixed_size)
    return described(small, notes=notes, compaction=Compaction(tuple(_changes(original, small))))


def smaller(original: nn.Module, example: tuple[Tensor, ...], *, fixed_size: bool) -> tuple[nn.Module, list[str]]:
    """The network with fewer channels, or as it is, and what must be said of it."""
    try:
        return _smaller(original, example, fixed_size)
    except UntraceableError as error:
        return original, [f"nothing was removed: {error}"]


def _smaller(original: nn.Module, example: tuple[Tensor, ...], fixed_size: bool) -> tuple[nn.Module, list[str]]:
    """Found and checked in float64, and then given the original's types: what is left to rounding is theirs alone.

    A network that goes by the types of its tensors may not like that, and is then followed in its own.
    """
    own = _Trials(original, example)
    if (exact := _in_float64(original, example)) is not None:
        try:
            small, notes = _found(_Trials(*exact), fixed_size)
            own.check(_with_types_of(original, small))
        except UntraceableError:
            pass
        else:
            return small, notes
    return _found(own, fixed_size)


def _found(trials: _Trials, fixed_size: bool) -> tuple[nn.Module, list[str]]:
    """The smallest network that passes."""
    model, example = trials.model, trials.example
    first, notes = _once(model, example, fixed_size=False)
    small = _repeated(first, example, fixed_size=False)
    trials.check(small)
    if fixed_size:
        try:
            starts = (small, _once(model, example, fixed_size=True)[0])
            fixed = [_repeated(start, example, fixed_size=True) for start in starts]
            # What differs at the borders is kept as a map, which may be large.
            smallest = min((small, *(each for each in fixed if _numbers(each) <= _numbers(model))), key=_weights)
            trials.check(smallest)
        except UntraceableError as error:
            notes.append(f"nothing more was removed for the sake of one size: {error}")
        else:
            small = smallest
    return small, notes


@torch.no_grad()
def _in_float64(model: nn.Module, example: tuple[Tensor, ...]) -> tuple[nn.Module, tuple[Tensor, ...]] | None:
    """The same in float64, if that runs."""
    try:
        exact = copy.deepcopy(model).double()
        inputs = tuple(each.double() if each.is_floating_point() else each for each in example)
        exact(*copy.deepcopy(inputs))
    except Exception:  # any code of the user's may run here, and not every device has float64
        return None
    return exact, inputs


@torch.no_grad()
def _once(model: nn.Module, example: tuple[Tensor, ...], *, fixed_size: bool) -> tuple[nn.Module, list[str]]:
    """One pass. Most networks need no second one; a convolution of which one group is left does."""
    traced = trace(model, example)
    analysis, notes = analyze(traced)
    if fixed_size:
        analysis = analysis.fixed(evaluate(traced, example))
    builder = Builder(traced, analysis, analysis.keep())
    try:
        return builder.build().eval(), [*traced.notes, *notes]
    except Exception as error:  # of torch.fx, which makes Python of it, and of names that a user chose
        raise UntraceableError(f"no smaller network could be written ({first_line(error)})") from error


def _repeated(model: nn.Module, example: tuple[Tensor, ...], *, fixed_size: bool) -> nn.Module:
    """As many passes as make it smaller."""
    while _weights(smaller := _once(model, example, fixed_size=fixed_size)[0]) < _weights(model):
        model = smaller
    return model


def _weights(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _numbers(model: nn.Module) -> int:
    return _weights(model) + sum(buffer.numel() for buffer in model.buffers())


class _Trials:
    """A network, an example with a batch of at least two where it takes one, and what others must give as well."""

    def __init__(self, model: nn.Module, example: tuple[Tensor, ...]) -> None:
        self.model, self.example = model, example
        self.known = [(example, _run(model, example))]
        if example[0].shape[:1] == (1,):
            twice = tuple(torch.cat([each, each]) if each.ndim else each for each in example)
            if self._try(twice):
                self.example = twice  # at one, an axis of size 1 may be the batch or not
        self._try(tuple(torch.randn_like(each) if each.is_floating_point() else each for each in example))
        with contextlib.suppress(ValueError, IndexError):
            self._try(inputs_like(example, batch_of(example) + 2))

    def _try(self, inputs: tuple[Tensor, ...]) -> bool:
        try:
            self.known.append((inputs, _run(self.model, inputs)))
        except Exception:  # any code of the user's may run here, and it may not like what it is given
            return False
        return True

    def check(self, model: nn.Module) -> None:
        """An error if another network gives anything else."""
        for inputs, expected in self.known:
            tolerance = precision(expected) ** 0.4  # 5e-7 in float64
            try:
                difference = unlike(expected, _run(model, inputs), tolerance, shared=1e-3)
            except Exception as error:  # the network that was made may not run at all
                raise UntraceableError(f"the smaller network failed ({first_line(error)})") from error
            if difference:
                raise UntraceableError(f"the smaller network gave other outputs ({difference})")


@torch.no_grad()
def _run(model: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # for networks that draw random numbers even when evaluated
        return model(*copy.deepcopy(inputs))


def _with_types_of(original: nn.Module, small: nn.Module) -> nn.Module:
    """Every tensor in the type that it had, and ours in that of the first parameter."""
    tensors = (*original.named_parameters(remove_duplicate=False), *original.named_buffers(remove_duplicate=False))
    types = {name: tensor.dtype for name, tensor in tensors}
    usual = next((each.dtype for each in original.parameters()), torch.float32)
    for prefix, module in small.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and tensor.is_floating_point():
                tensor.data = tensor.data.to(types.get(f"{prefix}.{name}".lstrip("."), usual))
    return small


def _changes(before: nn.Module, after: nn.Module) -> Iterator[LayerChange]:
    left = dict(after.named_modules())
    for name, module in before.named_modules():
        if _is_layer(module):
            there = left.get(name)
            # A layer whose weight the network reads by itself is still there, but no layer any more.
            whole = there is not None and getattr(there, "weight", None) is not None
            pairs = zip(_sizes(module), _sizes(module if whole and not _is_layer(there) else there), strict=True)
            yield LayerChange(name, *pairs)


def _is_layer(module: nn.Module | None) -> bool:
    return isinstance(module, nn.Linear | _ConvNd)


def _sizes(module: nn.Module | None) -> tuple[int, int, int]:
    """Inputs, outputs and weights."""
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features, module.weight.numel()
    if isinstance(module, _ConvNd):
        return module.in_channels, module.out_channels, module.weight.numel()
    return 0, 0, 0


def described(model: nn.Module, **own: Any) -> nn.Module:
    """The network with something to say of itself, unless it has parts of that name."""
    taken = {*model._modules, *model._parameters, *model._buffers, *dir(type(model))}
    own = {name: value for name, value in own.items() if name not in taken}
    if isinstance(model, fx.GraphModule):
        model.meta[PRESERVED] = {**model.meta.get(PRESERVED, {}), **own}  # or a deepcopy would lose them
    for name, value in own.items():
        setattr(model, name, value)
    return model
