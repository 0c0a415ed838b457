"""The pruner: a model, an optimizer, and what happens around each optimizer step."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, NoReturn, Self

import torch
from torch import Tensor, nn

from .criteria import Criterion, statistics_of
from .dead_weights import DeadWeights
from .events import Event, Progress, Selection, warn_of_dead_layer
from .first_step import FirstStep
from .granularity import Granularity, GranularityChoice, Reduction, as_granularity, units_for
from .layer_coverage import warn_of_low_coverage
from .layers import Layer, Patterns, find_layers, refuse_inference_mode
from .lost_zeros import BETWEEN_STEPS, warn_at_the_end, warn_of_lost_zeros
from .modules import named_tensors
from .pruner_copy import REFUSAL, copy_together
from .pruner_reading import Reading, StatisticMaker
from .pruner_state import check_state, load_masks_and_statistics, save_state
from .rank_agreement import check_ranks
from .revival import Revival, as_revival, warn_of_long_revival
from .runtime import attachments
from .runtime.compiler import Compile, decide
from .runtime.gradient_masks import GradientMasks
from .runtime.hooks import StepHooks
from .runtime.noise import GradientNoise, as_noise, warn_of_divergence
from .runtime.ownership import Ownership
from .runtime.runner import Runner
from .runtime.unwrapping import unwrap_optimizer
from .runtime.weights_before import WeightsBefore
from .schedules import Pruning, Schedule
from .selection import read_floor
from .shard_support import refuse_old_sharding, refuse_on_shards
from .shards.matching import zero_where_pruned
from .shrinking.state_guard import SAVE_EXPANDED, StateGuard
from .statistics import STATISTICS, Place, Statistic
from .statistics.fan_in import fan_in_of
from .statistics.requests import requested


class Pruner(Reading):
    """Prune a model while an optimizer trains it.

    The model is not modified: its modules, parameters and `state_dict` stay as they are, and a pruned weight is a zero
    that stays zero. Everything happens in hooks: gradients are masked as they are accumulated, and the rest is done
    around `optimizer.step()`.

    A method of your own is a subclass. These parts can be overridden, and are called in this order:

    - `start()`: when the pruner is attached, before the first pruning. It is called again before the first step if the
      weights were changed in between, such as loaded from a checkpoint.
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
        granularity: what is pruned as one unit: "weight", "kernel" (a filter plane), "channel" (an output channel with
            everything that is tied to it or reads it), a block `(rows, columns)`, or a pattern such as "2:4".
        reduce: how the scores of the weights of a unit become its score: "mean", "sum" or "norm".
        dead_first: prune weights that lie on no live path from the input to the output before all others. It does not
            apply to a pruning at step 0, before the model was called.
        include: which weights to prune instead of those of Linear and convolution modules; see `layers.find_layers`.
        exclude: which weights to leave out.
        revival: whether pruned weights keep a hidden value that goes on learning, so that they can come back: a
            `Revival`, True for its defaults, or None for pruning for good.
        statistics: your own statistics by name, or known ones with other settings.
        seed: the seed of the statistic `uniform`, and of noise given as a number.
        compile: run the work around a step under `torch.compile`. "auto" compiles if the run is long enough to repay
            it, which depends on its steps and sizes alone.
    """

    tracks: ClassVar[tuple[str, ...]] = ()
    """Statistics that a method needs beyond those that its criterion asks for."""

    refuses_shards: ClassVar[str | None] = None
    """Why a method does not work with sharded weights (DTensors), and what to do instead. None if it does."""

    covers_adapters: ClassVar[bool] = False
    """Whether the weights of LoRA adapters are among those that are covered by default."""

    check_ranks: bool = True
    """Whether data-parallel ranks are compared before each pruning. Set it to False on the class or on a pruner if the
    ranks train different networks."""

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
        granularity: GranularityChoice = "weight",
        reduce: Reduction = "mean",
        dead_first: bool = False,
        include: Patterns | None = None,
        exclude: Patterns | None = None,
        revival: Revival | bool | None = None,
        statistics: Mapping[str, StatisticMaker] | None = None,
        seed: int = 0,
        compile: Compile = "auto",  # noqa: A002
    ) -> None:
        optimizer = unwrap_optimizer(optimizer)
        refuse_inference_mode()
        refuse_old_sharding(model)
        if scope not in ("global", "layer"):
            raise ValueError(f"scope is {scope!r}; give 'global' or 'layer'")
        if not isinstance(dead_first, bool):
            raise TypeError(f"dead_first is {dead_first!r}; give True or False")
        self.model, self.optimizer = model, optimizer
        self.criterion, self.schedule, self.scope, self.seed = criterion, schedule, scope, seed
        self.noise = as_noise(noise, seed)
        if not isinstance(schedule, Schedule):
            raise TypeError(f"schedule is {schedule!r}; give a schedule, such as flipout.Geometric(0.99, steps)")
        if self.noise is not None:
            warn_of_divergence(self.noise, optimizer, schedule.steps)
        self.layers = find_layers(model, optimizer, include, exclude, adapters=self.covers_adapters)
        warn_of_low_coverage(model, self.layers, include, exclude)
        attachments.refuse_second(self.layers)
        self.events: list[Event] = []
        self._start_shrinking()
        self._dead: set[str] = set()
        self.dead_weights = DeadWeights() if dead_first else None
        self._plan = self._planned(as_granularity(granularity, reduce), floor)
        self.revival, self._frozen_at = as_revival(revival), 0
        if self.revival is not None:
            self._refuse_revival()
            plan, self._plan = self._plan, self.revival.extend(self._plan, schedule.steps)
            warn_of_long_revival(self.revival, plan, schedule.steps)
            self._frozen_at = self.revival.frozen_at(schedule.steps)
        self._progress = Progress(self._plan[-1].step if self._plan else 0, schedule.steps)
        self._track(statistics or {})
        refuse_on_shards(self)
        self._compile, self.runner = compile, Runner(decide(compile, self._weights_with_work(), schedule.steps))
        with torch.no_grad():
            self.start()
            self._prune_at_once()
        self._ownership = Ownership(self.layers, optimizer)
        self._first_step: FirstStep | None = FirstStep(self, type(self).start is not Pruner.start)
        self._warned_of_lost_zeros = False
        try:
            self._attach()
        except BaseException:
            self._before.restore()
            raise

    def _attach(self) -> None:
        """Register everything that belongs to the optimizer; a copy of the pruner does this too."""
        attachments.add(self)  # before the hooks, because it fails if another thread has just attached a pruner
        self._hooks = StepHooks(self.optimizer, self._before_step, self._after_step)
        self._state_guard = StateGuard(self.optimizer, lambda: self.shrunk)
        this = weakref.ref(self)
        self._gradient_masks = GradientMasks(self.layers, lambda: (pruner := this()) is None or pruner.finished)
        if self.dead_weights is not None:
            self.dead_weights.watch(self.model)
        if self.units is not None:
            self.units.watch(self.model)
        self._farewell = weakref.finalize(self, warn_at_the_end, self._progress, weakref.ref(self))

    # Acting.

    @torch.no_grad()
    def apply_to(self, model: nn.Module) -> None:
        """Zero the pruned weights in the model or in a copy of it, such as a moving average of its weights."""
        tensors = named_tensors(model)
        if model is self.model:  # in which FSDP2 may have put gathered weights
            tensors |= {layer.name: layer.weight for layer in self.layers}
        if missing := [name for name in self.masks if name not in tensors]:
            raise ValueError(f"this model has no parameter {', '.join(missing)}; pass a copy of the pruned model")
        self._refuse_copy(model)
        for name, mask in self.masks.items():
            if tensors[name].shape != mask.shape:
                raise ValueError(f"{name} of this model has another shape; pass a copy of the pruned model")
        for name, mask in self.masks.items():
            zero_where_pruned(tensors[name], mask)

    def remove(self) -> None:
        """Detach from the optimizer. The zeros stay in the model, but training no longer keeps them at zero.

        A shrunk network is expanded.
        """
        if attachments.discard(self):
            self.expand()
            self._hooks.remove()
            self._state_guard.remove()
            self._gradient_masks.remove()
            if self.dead_weights is not None:
                self.dead_weights.remove()
            if self.units is not None:
                self.units.remove()
            self._farewell.detach()
            self._progress.warn()
            warn_of_lost_zeros(self, self.lost_zeros())

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue bit for bit; for `torch.save`, loadable with `weights_only=True`.

        A shrunk network is saved inside of `expanded()`.
        """
        if self.shrunk:
            raise RuntimeError(SAVE_EXPANDED)
        for layer in self.layers:
            self.runner.hide(layer)  # if an error has interrupted a step
        if self._first_step is not None:
            self._first_step.renew(self)
        elif self.step:  # before that, weights may have been loaded whose state is loaded next
            warn_of_lost_zeros(self, self.lost_zeros())
        return save_state(self)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Continue from a saved state. The model's weights may be loaded before or after.

        A state that does not fit raises an error and changes nothing. If the network was shrunk when the state was
        saved, it is shrunk again, so the weights and the optimizer's state must be loaded before.
        """
        with self.expanded():
            check_state(self, state)
        self.expand()
        before, self._progress.step = self.step, state["step"]
        try:
            self.load_extra_state(state["extra"])  # first: a method of your own may refuse it
        except BaseException:
            self._progress.step = before
            raise
        self._before.restore_pruned()
        load_masks_and_statistics(self, state)
        if self._compile == "auto":
            self.runner = Runner(state["compiled"])  # the same path gives the same bits
        self._progress.finished = self.finished
        self._dead = {layer.name for layer in self.layers if not layer.kept}
        self._first_step, self._warned_of_lost_zeros = None, False
        self._load_shrunk_state(state["shrunk"])
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy the pruner if its model and its optimizer are copied in the same call, before it."""
        return copy_together(self, memo)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(REFUSAL)

    # Around a step.

    def start(self) -> None:
        """Take the initial state that a method needs from the weights. Does nothing by default.

        It is called when the pruner is attached. If the weights are changed after that, such as loaded from a
        checkpoint, it is called again before the first step, unless a state was loaded.
        """

    def change_gradients(self, scale: Tensor | float) -> None:
        """Mask the gradients and add noise. `scale` is the factor that a gradient scaler has multiplied them with.

        The gradients of weights with hidden values are scaled instead of masked.
        """
        for layer in self.layers:
            grad = layer.grad
            if grad is None or not layer.size:
                continue
            if layer.hidden is not None and self.revival is not None:
                self.runner.teach(layer, grad, self.revival, self.noise, self.step, scale)
            elif self.noise is not None and self.noise.scale:
                parts = [layer, *(parked for parked in self.parked if parked.name == layer.name)]
                if layer.positions.whole or layer.part is not None:
                    self.runner.perturb(layer, grad, self.noise, self.step, scale)
                else:
                    self.runner.perturb_parts(parts, self.noise, self.step, scale)
            elif not layer.dense:
                layer.clear(grad)

    def settle(self) -> None:
        """Update the statistics that have kernels, and zero the pruned weights, after an optimizer update.

        Hidden values go back to where they are kept.
        """
        for layer in self.trained:
            self.runner.settle(layer)

    def _before_step(self, scale: Tensor | float) -> None:
        self._ownership.check()
        if self.units is not None:
            self.units.ready(self.model)
        if self._first_step is not None:
            first, self._first_step = self._first_step, None
            first.take(self)
        if self._is_checked(self.step + 1):
            self._compare_between_steps()
        for layer in self.layers:
            if layer.weight.grad is not None and layer.weight.grad.layout != torch.strided:
                raise ValueError(f"{layer.name} has a sparse gradient: use sparse=False there, or exclude= it")
            layer.prepare_shard()
        for layer in self.layers:
            self.runner.wake(layer)
        self._set_parked_gradients()
        for layer, statistics in self._looking:
            self._show_gradient(layer, statistics, scale)
        self.change_gradients(scale)

    def _show_gradient(self, layer: Layer, statistics: list[Statistic], scale: Tensor | float) -> None:
        """Call `before` of statistics, each with the gradient that it asks for."""
        grad = layer.grad
        for kind in ("unmasked", "masked", None):
            asking = [statistic for statistic in statistics if statistic.gradient == kind]
            if not asking:
                continue
            if kind == "masked" and grad is not None and not layer.dense and layer.hidden is None:
                layer.clear(grad)
            shown = None if kind is None else grad
            if shown is not None and isinstance(scale, Tensor):
                shown = shown / scale.to(shown.device)
            for statistic in asking:
                statistic.before(layer.local, shown)

    def _after_step(self) -> None:
        for layer in self.trained:
            for statistic in layer.statistics.values():
                if statistic.kernel is None:
                    statistic.after(layer.local, layer.learning)
        self._before.drop()
        self._progress.step += 1
        self.settle()
        for parked in self.parked:
            parked.weight.grad = None
        self._prune_due()

    # Pruning events that are due.

    def agree(self, selection: Selection) -> None:
        check_ranks(self, selection)

    def _prune_at_once(self) -> None:
        """Carry out the prunings of step 0."""
        at_once = bool(self._plan) and self._plan[0].step == 0
        self._before = WeightsBefore(self.layers if at_once else (), self.optimizer)
        try:
            self._prune_due()
        except BaseException:  # the constructor fails, so the weights are restored
            self._before.restore()
            raise

    def _prune_due(self) -> None:
        while not self.finished and self._plan[len(self.events)].step <= self.step:
            self.prune(self._plan[len(self.events)])
            self._drop_pruned()
        self._progress.finished = self.finished
        if not self.regrows:
            self.drop_hidden_values()
        self._warn_of_dead_layers()  # last, because a warning may be turned into an error

    def _warn_of_dead_layers(self) -> None:
        sizes = {layer.name: layer.size for layer in self.layers}
        for name, kept in self.kept_by_name().items() if not self.regrows else ():
            if sizes[name] and not kept and name not in self._dead:
                self._dead.add(name)
                warn_of_dead_layer(name, self.step)

    def _is_checked(self, step: int) -> bool:
        """Whether weights are compared with masks before a step: the last one, and those with a pruning after them."""
        return step == self.schedule.steps or (not self.finished and self._plan[len(self.events)].step <= step)

    def _compare_between_steps(self) -> None:
        """Find weights that were replaced, or changed by something other than the optimizer's step."""
        self._ownership.check_names(named_tensors(self.model))
        if not self._warned_of_lost_zeros and (lost := self.lost_zeros()):
            self._warned_of_lost_zeros = True
            warn_of_lost_zeros(self, lost, BETWEEN_STEPS)

    def masks_are_stale(self) -> bool:
        """Whether weights were changed since a pruning at step 0 that depends on them."""
        return set(self.asked) != {"uniform"} and self._before.changed()

    # Statistics, settings and state.

    def _track(self, own: Mapping[str, StatisticMaker]) -> None:
        known: dict[str, StatisticMaker] = {**STATISTICS, **statistics_of(self.criterion), **own}
        self.asked = requested(self.criterion, known)
        if unknown := [key for key in self.tracks if key not in known]:
            known_names = ", ".join(known)
            raise ValueError(f"{type(self).__name__} tracks {', '.join(unknown)}; the statistics are {known_names}")
        self.tracked = {key: known[key] for key in dict.fromkeys([*self.asked, *self.tracks])}
        for layer in self.layers:
            place = Place(layer.number, self.seed, fan_in_of(layer.module, layer.weight), layer.positions)
            layer.statistics = {key: make(layer.local.detach(), place) for key, make in self.tracked.items()}
            for key, statistic in layer.statistics.items():
                statistic.check_shapes(key, layer.local)

    @property
    def _looking(self) -> list[tuple[Layer, list[Statistic]]]:
        """The statistics that are updated before a step."""
        looking = ((layer, [s for s in layer.statistics.values() if _looks(s)]) for layer in self.trained)
        return [(layer, statistics) for layer, statistics in looking if statistics]

    def overridden(self, parts: Iterable[str]) -> list[str]:
        """Those of some parts of a pruner that this method does in its own way."""
        return [part for part in parts if getattr(type(self), part) is not getattr(Pruner, part)]

    def _planned(self, granularity: Granularity, floor: int | float) -> list[Pruning]:
        """The prunings of the schedule in whole units, with the floors."""
        plan = self.schedule.plan(self.prunable)
        least = min((p.nonzero for p in plan if p.nonzero is not None), default=self.prunable)
        self.floor, self.floors = floor, read_floor(floor, [layer.size for layer in self.layers], least)
        self.granularity, self.units = granularity, units_for(granularity, self)
        return plan if self.units is None else self.units.planned(plan, self.prunable, self.floors)

    def _refuse_revival(self) -> None:
        """Refuse hidden values for a method that changes gradients, weights or masks in its own way."""
        if own := self.overridden(("change_gradients", "settle", "prune", "select", "apply")):
            raise ValueError(
                f"{type(self).__name__} does not take revival=: its own {own[0]}() decides what happens to pruned "
                "weights. Leave it out, or use a method that prunes by a criterion"
            )

    def _weights_with_work(self) -> int:
        """The number of weights that a kernel processes at every step."""
        noisy = self.noise is not None and self.noise.scale > 0
        counted = any(s.kernel is not None for layer in self.layers for s in layer.statistics.values())
        return self.prunable if noisy or counted or self.revival is not None else 0

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
            "granularity": self.granularity,
            "dead_first": self.dead_weights is not None,
            "revival": self.revival,
            "seed": self.seed,
            "weights": {layer.name: list(layer.positions.shape) for layer in self.layers},
        }

    def extra_state(self) -> dict[str, dict[str, Tensor]]:
        """Tensors that a method keeps beyond masks and statistics, saved with the state. None by default.

        The names, shapes and dtypes must be the same at every step: a state with others is refused.
        """
        return {}

    def load_extra_state(self, extra: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Restore what `extra_state` returned. `step` is that of the state already."""


def _looks(statistic: Statistic) -> bool:
    return type(statistic).before is not Statistic.before
