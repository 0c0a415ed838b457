"""The pruner: a model, an optimizer, and what happens around each optimizer step."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from .criteria import Criterion, statistics_of
from .events import Event, Progress, Selection, warn_of_dead_layer
from .graph.live_paths import effective_weights
from .layers import Layer, Patterns, count_layers, find_layers, named_tensors, refuse_inference_mode
from .pruner_state import check_state, load_masks_and_statistics, save_state
from .runtime import attachments
from .runtime.compiler import Compile, decide
from .runtime.gradient_masks import GradientMasks
from .runtime.hooks import StepHooks, check_optimizer
from .runtime.noise import GradientNoise, as_noise, warn_of_divergence
from .runtime.optimizer_state import clear_state
from .runtime.runner import Runner
from .runtime.scoring import check_scores, comparison_type
from .runtime.weights_before import WeightsBefore
from .schedules import Pruning, Schedule
from .selection import NotFiniteError, choose, read_floor
from .statistics import STATISTICS, Place, Statistic
from .statistics.requests import requested
from .summary import Plan, Summary, summarize

StatisticMaker = Callable[[Tensor, Place], Statistic]


class Pruner:
    """Prune a model while an optimizer trains it.

    The model is not modified: its modules, parameters and `state_dict` stay as they are, and a pruned weight is a zero
    that stays zero. Everything happens in hooks: gradients are masked as they are accumulated, and the rest is done
    around `optimizer.step()`.

    A method of your own is a subclass. These parts can be overridden, and are called in this order:

    - `start()`: once, before the first pruning.
    - `change_gradients(scale)`: before each step. Masks the gradients and adds noise.
    - `settle()`: after each step. Updates the statistics that have kernels, and zeroes pruned weights.
    - `prune(pruning)`: a pruning event, when one is due. It calls `keep`, `select` (which calls `score`), `apply` and
      `record`.
    - `settings()`, `extra_state()`, `load_extra_state()`: what is compared and saved beyond the masks and statistics.

    `tracks` names the statistics that a method needs beyond those of its criterion.

    Args:
        model: the network; it may be compiled or data-parallel.
        optimizer: the optimizer that trains it; it must hold every weight to prune.
        criterion: the score of a weight, lowest pruned first. Its arguments name the statistics it needs.
        schedule: when to prune, and to what count.
        noise: gradient noise, or its scale; none by default.
        scope: "global" ranks all weights together; "layer" prunes every layer by the same share.
        floor: the least number of weights (an integer) or share of weights (a float) that each layer keeps. The total
            stays exact.
        include: which weights to prune instead of those of Linear and convolution modules; see `layers.find_layers`.
        exclude: which weights to leave out.
        statistics: your own statistics by name, or known ones with other settings.
        seed: the seed of the statistic `uniform`, and of noise given as a number.
        compile: run the work around a step under `torch.compile`. "auto" compiles if the run is long enough to repay
            it, which depends on its steps and sizes alone.
    """

    tracks: ClassVar[tuple[str, ...]] = ()
    """Statistics that a method needs beyond those that its criterion asks for."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        criterion: Criterion,
        schedule: Schedule,
        noise: GradientNoise | float | None = None,
        scope: Literal["global", "layer"] = "global",
        floor: int | float = 0,
        include: Patterns | None = None,
        exclude: Patterns | None = None,
        statistics: Mapping[str, StatisticMaker] | None = None,
        seed: int = 0,
        compile: Compile = "auto",  # noqa: A002
    ) -> None:
        check_optimizer(optimizer)
        refuse_inference_mode()
        if scope not in ("global", "layer"):
            raise ValueError(f"scope is {scope!r}; give 'global' or 'layer'")
        self.model, self.optimizer = model, optimizer
        self.criterion, self.schedule, self.scope, self.seed = criterion, schedule, scope, seed
        self.noise = as_noise(noise, seed)
        if not isinstance(schedule, Schedule):
            raise TypeError(f"schedule is {schedule!r}; give a schedule, such as flipout.Geometric(0.99, steps)")
        if self.noise is not None:
            warn_of_divergence(self.noise, optimizer, schedule.steps)
        self.layers = find_layers(model, optimizer, include, exclude)
        attachments.refuse_second(self.layers)
        self.events: list[Event] = []
        self._dead: set[str] = set()
        self._plan = schedule.plan(self.prunable)
        self._progress = Progress(self._plan[-1].step if self._plan else 0, schedule.steps)
        least = min((p.nonzero for p in self._plan if p.nonzero is not None), default=self.prunable)
        self.floor, self.floors = floor, read_floor(floor, [layer.weight.numel() for layer in self.layers], least)
        self._track(statistics or {})
        self._compile, self.runner = compile, Runner(decide(compile, self._weights_with_work(), schedule.steps))
        with torch.no_grad():
            self.start()
            self._prune_at_once()
        attachments.add(self)  # before the hooks, because it fails if another thread has just attached a pruner
        self._hooks = StepHooks(optimizer, self._before_step, self._after_step)
        self._gradient_masks = GradientMasks(self.layers)
        self._farewell = weakref.finalize(self, Progress.warn, self._progress)

    # Reading.

    @property
    def step(self) -> int:
        """The number of optimizer steps taken; skipped ones do not count."""
        return self._progress.step

    @property
    def prunable(self) -> int:
        """The number of weights that can be pruned, including those that are."""
        return sum(layer.weight.numel() for layer in self.layers)

    @property
    def nonzero(self) -> int:
        """The number of weights that the masks keep."""
        return sum(layer.kept for layer in self.layers)

    @property
    def sparsity(self) -> float:
        """`1 - nonzero / prunable`."""
        return 1 - self.nonzero / self.prunable

    @property
    def finished(self) -> bool:
        """Whether the last pruning is done."""
        return len(self.events) >= len(self._plan)

    @property
    def masks(self) -> dict[str, Tensor]:
        """For each weight tensor, a boolean tensor of its shape: True where the weight is kept."""
        return {layer.name: layer.mask for layer in self.layers}

    @property
    def statistics(self) -> dict[str, dict[str, Tensor]]:
        """The values of the statistics: `statistics["flips"]["fc1.weight"]`."""
        return {key: {layer.name: self.value(layer, key) for layer in self.layers} for key in self.tracked}

    def plan(self) -> Plan:
        """Every pruning: the step, the sparsity and the weights kept."""
        return Plan(self._plan)

    def summary(self, example_input: Tensor | tuple[Tensor, ...] | None = None) -> Summary:
        """Each layer (shape, weights, kept, sparsity, dead channels), the totals, and the progress of the schedule.

        With an example of the model's input, also how many weights lie on a live path from the input to the output.
        """
        status = f"{self!r}" if self.finished else f"{self!r}\n{self._progress.complaint()}"
        live = {} if example_input is None else effective_weights(self.model, example_input).layers
        rows = (summarize(layer, live[layer.name][1] if layer.name in live else None) for layer in self.layers)
        return Summary(tuple(rows), status)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(step {self.step:,} of {self.schedule.steps:,}, {len(self.events)} of "
            f"{len(self._plan)} prunings, {self.nonzero:,} of {self.prunable:,} weights kept in {len(self.layers)} "
            f"layers, sparsity {self.sparsity:.4%})"
        )

    # Acting.

    @torch.no_grad()
    def apply_to(self, model: nn.Module) -> None:
        """Zero the pruned weights in a copy of the model, such as a moving average of its weights."""
        tensors = named_tensors(model)
        if missing := [name for name in self.masks if name not in tensors]:
            raise ValueError(f"this model has no parameter {', '.join(missing)}; pass a copy of the pruned model")
        for name, mask in self.masks.items():
            tensors[name].masked_fill_(~mask.to(tensors[name].device), 0)

    def remove(self) -> None:
        """Detach from the optimizer. The zeros stay in the model, but training no longer keeps them at zero."""
        if attachments.discard(self):
            self._hooks.remove()
            self._gradient_masks.remove()
            self._farewell.detach()
            self._progress.warn()

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue bit for bit; for `torch.save`, loadable with `weights_only=True`."""
        return save_state(self)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Continue from a saved state. The model's weights may be loaded before or after.

        A state that does not fit raises an error and changes nothing.
        """
        check_state(self, state)
        self._before.restore_pruned()
        load_masks_and_statistics(self, state)
        if self._compile == "auto":
            self.runner = Runner(state["compiled"])  # the same path gives the same bits
        self.load_extra_state(state["extra"])
        self._progress.step, self._progress.finished = state["step"], self.finished
        self._dead = {layer.name for layer in self.layers if not layer.kept}
        return self

    # Around a step.

    def start(self) -> None:
        """Prepare what a method needs before the first pruning. Does nothing by default."""

    def change_gradients(self, scale: Tensor | float) -> None:
        """Mask the gradients and add noise. `scale` is the factor that a gradient scaler has multiplied them with."""
        for layer in self.layers:
            grad = layer.weight.grad
            if grad is None or not layer.weight.numel():
                continue
            if self.noise is not None and self.noise.scale:
                self.runner.perturb(layer, grad, self.noise, self.step, scale)
            elif not layer.dense:
                layer.clear(grad)

    def settle(self) -> None:
        """Update the statistics that have kernels, and zero the pruned weights, after an optimizer update."""
        for layer in self.layers:
            self.runner.settle(layer)

    def _before_step(self, scale: Tensor | float) -> None:
        for layer in self.layers:
            if layer.weight.grad is not None and layer.weight.grad.layout != torch.strided:
                raise ValueError(f"{layer.name} has a sparse gradient: use sparse=False there, or exclude= it")
        for layer, statistics in self._looking:
            self._show_gradient(layer, statistics, scale)
        self.change_gradients(scale)

    def _show_gradient(self, layer: Layer, statistics: list[Statistic], scale: Tensor | float) -> None:
        """Call `before` of statistics, each with the gradient that it asks for."""
        grad = layer.weight.grad
        for kind in ("unmasked", "masked", None):
            asking = [statistic for statistic in statistics if statistic.gradient == kind]
            if not asking:
                continue
            if kind == "masked" and grad is not None and not layer.dense:
                layer.clear(grad)
            shown = None if kind is None else grad
            if shown is not None and isinstance(scale, Tensor):
                shown = shown / scale.to(shown.device)
            for statistic in asking:
                statistic.before(layer.weight, shown)

    def _after_step(self) -> None:
        for layer in self.layers:
            for statistic in layer.statistics.values():
                if statistic.kernel is None:
                    statistic.after(layer.weight, layer.mask)
        self._before.drop()
        self._progress.step += 1
        self.settle()
        self._prune_due()

    # A pruning event: score, select, apply, record.

    def prune(self, pruning: Pruning) -> None:
        """Carry out one pruning of the plan."""
        keep = self.keep(pruning)
        selection = self.select(keep)
        selection.check(type(self).__name__, self.layers, keep)
        self.apply(selection)
        self.record(selection)

    def keep(self, pruning: Pruning) -> int:
        """How many weights are kept after a pruning. By default what the plan says."""
        assert pruning.nonzero is not None, "a schedule without counts needs a method that overrides keep()"
        return pruning.nonzero

    def score(self, layer: Layer) -> Tensor:
        """The score of each weight of a layer; the lowest are pruned first."""
        scores = self.runner.scores(
            layer, self.criterion, self._asked, lambda: {key: self.value(layer, key) for key in self._asked}
        )
        return check_scores(scores, self.criterion, layer)

    def select(self, keep: int) -> Selection:
        """Choose what to prune, and what to grow, so that exactly `keep` weights are kept."""
        scored = next((layer for layer in self.layers if layer.weight.numel()), self.layers[0])
        try:
            chosen = choose(
                lambda number: self.score(self.layers[number]),
                [layer.mask for layer in self.layers],
                keep,
                floors=self.floors,
                per_layer=self.scope == "layer",
                dtype=comparison_type(self.score(scored).dtype, {layer.weight.dtype for layer in self.layers}),
                run=self.runner.elementwise,
            )
        except NotFiniteError as error:
            raise self.not_finite(self.layers[error.tensor], "scores") from None
        return Selection(chosen)

    def apply(self, selection: Selection) -> None:
        """Change the masks, zero the pruned weights, and clear the optimizer's state of every weight that changed.

        A weight that grows back starts at 0, without momentum.
        """
        for number, layer in enumerate(self.layers):
            changed = selection.prune[number]
            layer.mask ^= changed
            if selection.grow:
                layer.mask |= selection.grow[number]
                changed = changed | selection.grow[number]
            self.runner.zero(layer)
            clear_state(self.optimizer, layer.weight, changed)
        count_layers(self.layers)

    def record(self, selection: Selection) -> None:
        """Append an `Event` to `events`."""
        kept = {layer.name: layer.kept for layer in self.layers}
        self.events.append(Event(self.step, self.sparsity, self.nonzero, kept, selection.grown))

    def value(self, layer: Layer, statistic: str) -> Tensor:
        """The value of a statistic of a layer."""
        return layer.statistics[statistic].value(layer.weight.detach(), self.step)

    def not_finite(self, layer: Layer, what: str) -> FloatingPointError:
        """The error for NaN or infinite numbers in a layer."""
        return FloatingPointError(
            f"{layer.name} has NaN or infinite {what} at step {self.step}; nothing was pruned. Check for a loss that "
            "diverged (lower the learning rate, clip gradients) or a criterion that divides by zero"
        )

    def _prune_at_once(self) -> None:
        """Carry out the prunings of step 0."""
        at_once = bool(self._plan) and self._plan[0].step == 0
        self._before = WeightsBefore(self.layers if at_once else ())
        try:
            self._prune_due()
        except BaseException:  # the constructor fails, so the weights are restored
            self._before.restore()
            raise

    def _prune_due(self) -> None:
        while not self.finished and self._plan[len(self.events)].step <= self.step:
            self.prune(self._plan[len(self.events)])
        self._progress.finished = self.finished
        self._warn_of_dead_layers()  # last, because a warning may be turned into an error

    def _warn_of_dead_layers(self) -> None:
        for layer in self.layers:
            if layer.weight.numel() and not layer.kept and layer.name not in self._dead:
                self._dead.add(layer.name)
                warn_of_dead_layer(layer.name, self.step)

    # Statistics, settings and state.

    def _track(self, own: Mapping[str, StatisticMaker]) -> None:
        known: dict[str, StatisticMaker] = {**STATISTICS, **statistics_of(self.criterion), **own}
        self._asked = requested(self.criterion, known)
        self.tracked = {key: known[key] for key in dict.fromkeys([*self._asked, *self.tracks])}
        for layer in self.layers:
            place = Place(layer.number, self.seed)
            layer.statistics = {key: make(layer.weight.detach(), place) for key, make in self.tracked.items()}
        looking = ((layer, [s for s in layer.statistics.values() if _looks(s)]) for layer in self.layers)
        self._looking = [(layer, statistics) for layer, statistics in looking if statistics]

    def _weights_with_work(self) -> int:
        """The number of weights that a kernel processes at every step."""
        noisy = self.noise is not None and self.noise.scale > 0
        counted = any(s.kernel is not None for layer in self.layers for s in layer.statistics.values())
        return self.prunable if noisy or counted else 0

    def settings(self) -> dict[str, Any]:
        """What a saved state must agree with. A subclass adds its own: `super().settings() | {"p": self.p}`."""
        return {
            "method": type(self).__name__,
            "criterion": self.criterion,
            "schedule": self.schedule,
            "noise": self.noise,
            "statistics": self.tracked,
            "scope": self.scope,
            "floor": self.floor,
            "seed": self.seed,
            "weights": {layer.name: list(layer.weight.shape) for layer in self.layers},
        }

    def extra_state(self) -> dict[str, dict[str, Tensor]]:
        """Tensors that a method keeps beyond masks and statistics, saved with the state. None by default."""
        return {}

    def load_extra_state(self, extra: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Restore what `extra_state` returned."""


def _looks(statistic: Statistic) -> bool:
    return type(statistic).before is not Statistic.before
