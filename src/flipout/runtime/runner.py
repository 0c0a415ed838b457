"""The runner: it runs kernels on the layers of a pruner, in cache-sized blocks or compiled.

It knows kernels, not statistics: a statistic declares its kernel and its reader, and a criterion declares that it is
elementwise. The runner fuses what is declared into one loop per layer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from numbers import Integral, Real
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from ..criteria import is_elementwise
from ..hidden_values import hide, wake
from ..layers import Layer
from ..numerics import zero_pruned
from ..positions import ListedPositions
from ..random_numbers import key
from ..revival import Revival
from ..shards.parts import Part
from ..statistics import Statistic
from ..statistics.base import Kernel, Reader
from .compiler import compiled, failures
from .hidden_gradients import teach, teach_part
from .noise import GradientNoise, add_noise, deviation, deviation_of_parts, perturb
from .rows import Rows, lay_out
from .scoring import unchanged


class Runner:
    """Runs the work on each layer: before a step, after it, and in a pruning event."""

    def __init__(self, compile: bool) -> None:  # noqa: A002
        self._compile = compile
        self._rows: dict[tuple[Layer, bool], Rows] = {}
        self._numbers: dict[tuple[float, torch.device], Tensor] = {}
        self._settling: dict[tuple[Layer, bool], tuple[Callable[..., None], list[Statistic]]] = {}

    @property
    def compiled(self) -> bool:
        """Whether kernels run compiled: compilation was asked for, and it has not failed."""
        return self._compile and not failures

    def perturb(self, layer: Layer, grad: Tensor, noise: GradientNoise, step: int, scaled_by: Tensor | float) -> None:
        """Add noise to a gradient, and zero it where weights are pruned for good.

        `scaled_by` is the factor that a gradient scaler has multiplied the gradient with.
        """
        scale = self._number(noise.scale, grad.device)
        if noise.relative_to == "weight":  # noise relative to the gradient is scaled already
            scale = scale * (scaled_by.to(grad.device) if isinstance(scaled_by, Tensor) else scaled_by)
        sigma = None
        if layer.part is not None:
            sigma = scale * deviation_of_parts(layer.local, grad, layer.bytes, noise.relative_to, layer.part)
        if not grad.numel():
            return
        rows = self._rows_of(layer, grad.is_contiguous())
        weight, mask, grad = rows.weight, rows.mask, rows.like(grad)
        hashed = key("normal", noise.seed, step, layer.number)
        if self.compiled and sigma is None:
            keep = "hidden" if layer.hidden is not None else "masked"
            run = compiled(perturb, *rows.kind, noise.relative_to, keep)
            run(weight, grad, mask, rows.starts, rows.offsets, *hashed, scale, noise.relative_to, keep)
            return
        sigma = scale * deviation(weight, grad, mask, noise.relative_to) if sigma is None else sigma
        for block in rows.blocks:
            starts, hidden = rows.starts[block], layer.hidden is not None
            add_noise(grad[block], mask[block], starts, rows.offsets, *hashed, sigma, hidden)

    def perturb_parts(self, parts: Sequence[Layer], noise: GradientNoise, step: int, scaled_by: Tensor | float) -> None:
        """Add noise to the gradients of the parts of one weight tensor, as large as for the whole of it.

        What is not in any part counts as 0.
        """
        scale = self._number(noise.scale, parts[0].weight.device)
        if noise.relative_to == "weight":
            scale = scale * (scaled_by.to(scale.device) if isinstance(scaled_by, Tensor) else scaled_by)
        rows = [self._rows_of(part) for part in parts]
        grads = [
            each.like(part.weight.grad) for each, part in zip(rows, parts, strict=True) if part.weight.grad is not None
        ]
        sizes = [
            deviation(each.weight, grad, each.mask, noise.relative_to).square() * grad.numel()
            for each, grad in zip(rows, grads, strict=True)
        ]
        sigma = scale * (torch.stack(sizes).sum() / parts[0].positions.shape.numel()).sqrt()
        hashed = key("normal", noise.seed, step, parts[0].number)
        for each, grad in zip(rows, grads, strict=True):
            for block in each.blocks:
                add_noise(grad[block], each.mask[block], each.starts[block], each.offsets, *hashed, sigma, False)

    def teach(
        self,
        layer: Layer,
        grad: Tensor,
        revival: Revival,
        noise: GradientNoise | None,
        step: int,
        scaled_by: Tensor | float,
    ) -> None:
        """Prepare the gradient of a layer whose pruned weights keep learning. `scaled_by` is as for `perturb`."""
        if noise is not None and noise.scale:
            self.perturb(layer, grad, noise, step, scaled_by)
        share, trust = (self._number(value, grad.device) for value in (revival.rate, revival.trust))
        trust = trust * (scaled_by.to(grad.device) if isinstance(scaled_by, Tensor) else scaled_by)
        if layer.part is not None and layer.part.spread:
            teach_part(layer.local, grad, layer.bytes, share, trust, layer.part)
        elif grad.numel():
            rows = self._rows_of(layer, grad.is_contiguous())
            self._run(teach, rows, rows.weight, rows.like(grad), rows.mask, share, trust)

    def settle(self, layer: Layer) -> None:
        """Run the kernels of the layer's statistics, and zero the pruned weights, in one loop."""
        if not layer.local.numel():
            layer.settled()
            return
        kernel, statistics = self._settling_of(layer)
        if statistics or layer.hidden is not None:
            rows = self._rows_of(layer, _contiguous(statistics))
            tensors = [rows.like(tensor) for statistic in statistics for tensor in statistic.elements.values()]
            self._run(kernel, rows, rows.weight, rows.mask, *_hidden(layer, rows), *tensors)
            if layer.hidden is not None:
                layer.hidden.awake = False
        elif not layer.dense:
            layer.zero()
        layer.settled()

    def wake(self, layer: Layer) -> None:
        """Put the hidden values into the weight, for a step or a ranking."""
        if layer.hidden is not None and not layer.hidden.awake and layer.local.numel():
            rows = self._rows_of(layer, layer.hidden.values.is_contiguous())
            self._run(wake, rows, rows.weight, rows.mask, *_hidden(layer, rows))
            layer.hidden.awake = True

    def hide(self, layer: Layer) -> None:
        """Put what the network computes with into the weight."""
        if layer.hidden is not None and layer.hidden.awake and layer.local.numel():
            rows = self._rows_of(layer, layer.hidden.values.is_contiguous())
            self._run(hide, rows, rows.weight, rows.mask, *_hidden(layer, rows))
            layer.hidden.awake = False

    def zero(self, layer: Layer) -> None:
        """Zero the pruned weights."""
        if self._compiles(layer) and layer.local.numel():
            rows = self._rows_of(layer)
            self._run(zero_pruned, rows, rows.weight, rows.mask)
        else:
            layer.zero()

    def clear(self, layer: Layer, tensor: Tensor) -> None:
        """Zero another tensor of the weight's shape where weights are pruned."""
        rows = self._rows_of(layer) if self._compiles(layer) and tensor.numel() and tensor.is_contiguous() else None
        if rows is not None and rows.weight.ndim == 2:
            compiled(zero_pruned, *rows.kind, tensor.dtype)(rows.like(tensor), rows.mask)
        else:
            layer.clear(tensor)

    def scores(
        self,
        layer: Layer,
        criterion: Callable[..., Tensor],
        names: Sequence[str],
        values: Callable[[], dict[str, Tensor]],
    ) -> Any:
        """The criterion's scores of one layer: in one compiled loop if everything it needs is declared elementwise."""
        function, settings = _split(criterion)
        statistics = [layer.statistics[name] for name in names]
        readers = tuple(
            (name, s.reader, len(s.elements)) for name, s in zip(names, statistics, strict=True) if s.reader
        )
        fusable = (
            self._compiles(layer) and is_elementwise(criterion) and len(readers) == len(names) and settings is not None
        )
        if layer.part is not None and not is_elementwise(criterion):
            return _scores_of_whole(layer, layer.part, criterion, values())
        if not fusable or not layer.local.numel():
            given = values()
            with unchanged(criterion, layer, given.items()):
                return criterion(**given)
        rows = self._rows_of(layer, _contiguous(statistics))
        run = compiled(_score_kernel(function, readers, settings or ()), *rows.kind)
        states = [
            (s_name, rows.like(t)) for s_name, s in zip(names, statistics, strict=True) for t in s.elements.values()
        ]
        with unchanged(criterion, layer, [("weight", rows.weight), *states]):
            scores = run(rows.weight, *(state for _, state in states))
        fits = isinstance(scores, Tensor) and scores.numel() == layer.local.numel()
        return scores.view(layer.local.shape) if fits else scores

    def elementwise(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function for the elementwise work of a selection, compiled if kernels are."""
        if not self.compiled:
            return function
        return lambda first, *others: compiled(function, first.dtype, min(len(first), 2))(first, *others)

    def _run(self, kernel: Callable[..., None], rows: Rows, *tensors: Tensor) -> None:
        if self.compiled and not isinstance(rows.positions, ListedPositions):
            compiled(kernel, *rows.kind)(*tensors)
            return
        for block in rows.blocks:
            kernel(*(tensor[block] if tensor.ndim else tensor for tensor in tensors))

    def _compiles(self, layer: Layer) -> bool:
        """Whether kernels run compiled on a layer. A few listed elements are not worth it."""
        return self.compiled and not isinstance(layer.positions, ListedPositions)

    def _settling_of(self, layer: Layer) -> tuple[Callable[..., None], list[Statistic]]:
        place = layer, layer.hidden is not None
        if place not in self._settling:
            statistics = [statistic for statistic in layer.statistics.values() if statistic.kernel is not None]
            kernels = tuple((s.kernel, len(s.elements)) for s in statistics if s.kernel is not None)
            self._settling[place] = _settle_kernel(kernels, layer.hidden is not None), statistics
        return self._settling[place]

    def _rows_of(self, layer: Layer, contiguous: bool = True) -> Rows:
        """The layout of a layer, computed once and again if the weight or its mask has moved."""
        rows = self._rows.get((layer, contiguous))
        if rows is None or not rows.still_valid(layer):
            rows = self._rows[layer, contiguous] = lay_out(layer, contiguous)
        return rows

    def _number(self, number: float, device: torch.device) -> Tensor:
        """A number as a tensor on a device, made once."""
        if (number, device) not in self._numbers:
            self._numbers[number, device] = torch.full((), number, device=device)
        return self._numbers[number, device]


def _scores_of_whole(
    layer: Layer, part: Part, criterion: Callable[..., Tensor], values: Mapping[str, Tensor]
) -> Tensor:
    """The scores of a rank's part of a weight by a criterion that looks at the whole: every rank gathers the values."""
    given = {name: part.gather(value) for name, value in values.items()}
    with unchanged(criterion, layer, given.items()):
        scores = criterion(**given)
    fits = isinstance(scores, Tensor) and scores.shape == part.positions.shape
    return part.cut(scores) if fits else scores


def _hidden(layer: Layer, rows: Rows) -> tuple[Tensor, ...]:
    """The tensors of the hidden values of a layer, in the layout of its weight."""
    if layer.hidden is None:
        return ()
    values, *limits = layer.hidden.tensors
    return rows.like(values), *limits


@cache
def _settle_kernel(kernels: tuple[tuple[Kernel, int], ...], hidden: bool = False) -> Callable[..., None]:
    """One function that runs kernels, each on its own state tensors, and then zeroes the pruned weights.

    With hidden values, statistics see those of all weights.
    """

    def settle_hidden(
        weight: Tensor, mask: Tensor, values: Tensor, threshold: Tensor, ceiling: Tensor, *states: Tensor
    ) -> None:
        first = 0
        for kernel, count in kernels:
            kernel(weight, torch.ones_like(mask), *states[first : first + count])
            first += count
        hide(weight, mask, values, threshold, ceiling)

    def settle(weight: Tensor, mask: Tensor, *states: Tensor) -> None:
        first = 0
        for kernel, count in kernels:
            kernel(weight, mask, *states[first : first + count])
            first += count
        zero_pruned(weight, mask)

    return settle_hidden if hidden else settle


@cache
def _score_kernel(
    criterion: Callable[..., Tensor],
    readers: tuple[tuple[str, Reader, int], ...],
    settings: tuple[tuple[str, str, str], ...],
) -> Callable[..., Tensor]:
    """One function that reads statistics from their states and scores them.

    Settings travel as text, because a compiler treats numbers as variables.
    """

    def score(weight: Tensor, *states: Tensor) -> Tensor:
        values: dict[str, Any] = {}
        first = 0
        for name, reader, count in readers:
            values[name] = reader(weight, *states[first : first + count])
            first += count
        for name, kind, text in settings:
            values[name] = int(text) if kind == "int" else float(text)
        return criterion(**values)

    return score


def _contiguous(statistics: Sequence[Statistic]) -> bool:
    return all(tensor.is_contiguous() for statistic in statistics for tensor in statistic.elements.values())


def _split(criterion: Callable[..., Tensor]) -> tuple[Callable[..., Tensor], tuple[tuple[str, str, str], ...] | None]:
    """A criterion's bare function, and its settings with their types as text; None if it cannot be fused.

    Fused functions are kept for the whole process. So only functions of a module are fused, which live as long, and
    not closures or bound methods, which hold on to a pruner or to tensors.
    """
    parameters = inspect.signature(criterion).parameters.values()
    settings = {p.name: p.default for p in parameters if p.default is not p.empty}
    while isinstance(criterion, partial):
        if criterion.args:
            return criterion, None
        criterion = criterion.func
    lasting = isinstance(criterion, FunctionType) and "<locals>" not in criterion.__qualname__
    if not lasting or any(isinstance(value, bool) or not isinstance(value, Real) for value in settings.values()):
        return criterion, None
    return criterion, tuple(
        (name, "int", repr(int(value))) if isinstance(value, Integral) else (name, "float", repr(float(value)))
        for name, value in settings.items()
    )
