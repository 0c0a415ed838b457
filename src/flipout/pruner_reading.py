"""The part of a pruner that tells about it: its progress, masks and statistics, and whether the model agrees."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn

from .events import Progress
from .graph.live_paths import effective_weights
from .layer_coverage import Coverage, coverage_of
from .lost_zeros import complaint, count_lost_zeros, warn_of_lost_zeros
from .schedules import Pruning
from .shard_support import refuse_example_on_shards
from .shrinking.pruner_shrinking import Shrinking
from .statistics import Place, Statistic
from .summary import Plan, Summary, summarize

StatisticMaker = Callable[[Tensor, Place], Statistic]


class Reading(Shrinking):
    """Everything about a pruner that can be read, and that changes nothing."""

    tracked: Mapping[str, StatisticMaker]
    """All statistics that are kept up to date, by name."""
    _plan: Sequence[Pruning]
    _progress: Progress
    _frozen_at: int

    @property
    def step(self) -> int:
        """The number of optimizer steps taken; skipped ones do not count."""
        return self._progress.step

    @property
    def finished(self) -> bool:
        """Whether the last pruning is done."""
        return len(self.events) >= len(self._plan)

    @property
    def regrows(self) -> bool:
        """Whether a pruned weight can still come back. A method that grows weights overrides it."""
        return self.revival is not None and self.step < self._frozen_at

    @property
    def reviving(self) -> bool:
        return self.revival is not None and self.step <= self._frozen_at

    @property
    def masks(self) -> dict[str, Tensor]:
        """For each weight tensor, a boolean tensor of its shape: True where the weight is kept. It is a DTensor of the
        same layout if the weight is one."""
        return {layer.name: layer.as_weight(layer.mask) for layer in self.layers}

    @property
    def statistics(self) -> dict[str, dict[str, Tensor]]:
        """The values of the statistics: `statistics["flips"]["fc1.weight"]`."""
        return {
            key: {layer.name: layer.as_weight(self.value(layer, key)) for layer in self.layers} for key in self.tracked
        }

    def coverage(self) -> Coverage:
        """How much of the model this pruner covers, and what it leaves out. Print it."""
        with self.expanded():
            return coverage_of(self.model, self.layers)

    def plan(self) -> Plan:
        """Every pruning: the step, the sparsity and the weights kept.

        With `granularity="channel"` these are the most weights that are kept: see `events` for the exact numbers.
        """
        return Plan(self._plan)

    def summary(self, example_input: Tensor | tuple[Tensor, ...] | None = None) -> Summary:
        """Each layer (shape, weights, kept, sparsity, dead channels), the totals, and the progress of the schedule.

        With an example of the model's input, also how many weights lie on a live path from the input to the output.
        Pruned weights that are not zero in the model are named below the table, and cause a `LostZerosWarning`.
        """
        with self.expanded():
            return self._summary(example_input)

    def _summary(self, example_input: Tensor | tuple[Tensor, ...] | None) -> Summary:
        status = f"{self!r}" if self.finished else f"{self!r}\n{self._progress.complaint()}"
        if lost := self.lost_zeros():
            status += f"\n{complaint(self.masks, lost)}"
            warn_of_lost_zeros(self._pruner, lost)
        if returned := [event for event in self.events if event.grown]:
            number = sum(event.grown for event in returned)
            status += f"\n{number:,} times a pruned weight came back, the last time at step {returned[-1].step:,}"
        if self.units is not None:
            status += self.units.status()
        if example_input is not None:
            refuse_example_on_shards(self._pruner)
        live = {} if example_input is None else effective_weights(self.model, example_input).layers
        rows = (summarize(layer, live[layer.name][1] if layer.name in live else None) for layer in self.layers)
        return Summary(tuple(rows), status)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(step {self.step:,} of {self.schedule.steps:,}, {len(self.events)} of "
            f"{len(self._plan)} prunings, {self.nonzero:,} of {self.prunable:,} weights kept in {len(self.layers)} "
            f"layers, sparsity {self.sparsity:.4%})"
        )

    def lost_zeros(self, model: nn.Module | None = None) -> dict[str, int]:
        """For each weight tensor that has any: how many pruned weights are not zero in the model, or in a copy of it.

        Empty if the weights agree with the masks.
        """
        if model is not None:
            self._refuse_copy(model)
        return count_lost_zeros(self.masks, self.model if model is None else model)

    def check(self, model: nn.Module | None = None) -> None:
        """Raise a ValueError if pruned weights are not zero in the model, or in a copy such as a moving average."""
        if lost := self.lost_zeros(model):
            raise ValueError(complaint(self.masks, lost))
