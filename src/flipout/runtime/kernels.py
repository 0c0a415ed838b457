"""Running kernels on groups of weights: as loops in C, compiled into one loop, or block by block in eager mode."""

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
from ..kernels import step_loops
from ..numerics import zero_pruned
from ..statistics.base import Reader
from ..weights import Weight
from .compiler import compiled, failures
from .groups import Alone, Group
from .scoring import unchanged

step_loops.in_c(step_loops.zero_pruned)(zero_pruned)  # not declared there: mathematics knows no other room


class Kernels:
    """Runs the elementwise work of a pruner.

    Args:
        compile: whether `torch.compile` makes one loop of each kernel.
        in_c: whether kernels that have a loop in C use it.
    """

    def __init__(self, compile: bool, in_c: bool = False) -> None:  # noqa: A002
        self._compile, self.in_c = compile, in_c and step_loops.available()
        self._numbers: dict[tuple[float, torch.device], Tensor] = {}

    def renewed(self) -> Kernels:
        """Kernels of the same kind that hold nothing."""
        return Kernels(self.compiled, self.in_c)

    @property
    def compiled(self) -> bool:
        """Whether kernels run compiled: compilation was asked for, and it has not failed."""
        return self._compile and not failures

    def run(self, kernel: Callable[..., None], group: Group, *tensors: Tensor) -> None:
        """Run a kernel on tensors of a group. Those without dimensions are numbers for all elements."""
        if (loop := self.loop(kernel, *tensors)) is not None:
            loop(*tensors)
            return
        if self.compiles(kernel, group):
            compiled(kernel, *group.kind)(*tensors)
            return
        for block in group.blocks:
            kernel(*(tensor[block] if tensor.ndim else tensor for tensor in tensors))

    def loop(self, kernel: Callable[..., Any], *tensors: Tensor) -> Callable[..., Any] | None:
        """The loop in C that computes what a kernel computes on some tensors; None if there is none for them."""
        loop = step_loops.loop_of(kernel) if self.in_c else None
        return loop if loop is not None and step_loops.fits(*tensors) else None

    def compiles(self, kernel: Callable[..., Any], group: Group) -> bool:
        """Whether a kernel runs compiled on a group: a function of a module does."""
        return self.compiled and group.compiles and isinstance(kernel, FunctionType)

    def elementwise(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function for the elementwise work of a selection, compiled if kernels are."""
        if not self.compiled:
            return function
        return lambda first, *others: compiled(function, first.dtype, min(len(first), 2))(first, *others)

    def number(self, number: float, device: torch.device) -> Tensor:
        """A number as a tensor on a device, made once."""
        if (number, device) not in self._numbers:
            self._numbers[number, device] = torch.full((), number, dtype=torch.float32, device=device)
        return self._numbers[number, device]

    def scores(
        self,
        weight: Weight,
        criterion: Callable[..., Tensor],
        names: Sequence[str],
        values: Callable[[], dict[str, Tensor]],
    ) -> Any:
        """The criterion's scores of a weight: in one compiled loop if everything it needs is declared elementwise."""
        function, settings = _split(criterion)
        statistics = [weight.statistics[name] for name in names]
        readers = tuple(
            (name, s.reader, len(s.elements)) for name, s in zip(names, statistics, strict=True) if s.reader
        )
        group = Alone(weight) if self.compiled and weight.mask.numel() else None
        if weight.view.key is not None and not is_elementwise(criterion):
            return _scores_of_whole(weight, criterion, values())
        fusable = is_elementwise(criterion) and len(readers) == len(names) and settings is not None
        if group is None or not fusable:
            given = values()
            with unchanged(criterion, weight, given.items()):
                return criterion(**given)
        run = compiled(_score_kernel(function, readers, settings or ()), *group.kind)
        states = [
            (name, group.like(tensor))
            for name, statistic in zip(names, statistics, strict=True)
            for tensor in statistic.elements.values()
        ]
        with unchanged(criterion, weight, [("weight", group.values), *states]):
            scores = run(group.values, *(state for _, state in states))
        fits = isinstance(scores, Tensor) and scores.numel() == weight.mask.numel()
        return scores.view(weight.mask.shape) if fits else scores


def _scores_of_whole(weight: Weight, criterion: Callable[..., Tensor], values: Mapping[str, Tensor]) -> Tensor:
    """The scores of a shard by a criterion that looks at the whole weight: every rank gathers the values."""
    given = {name: weight.view.gather(value) for name, value in values.items()}
    with unchanged(criterion, weight, given.items()):
        scores = criterion(**given)
    fits = isinstance(scores, Tensor) and scores.shape == weight.view.positions.shape
    return weight.view.take(scores) if fits else scores


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
