"""The pruner: a model, an optimizer, and what happens around each optimizer step."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from .layers import Layer, Patterns, find_layers, named_tensors
from .noise import GradientNoise, as_noise, warn_of_divergence
from .plain_data import describe, difference, requested
from .progress import Event, Progress, warn_of_dead_layer
from .runtime import attachments
from .runtime.compiler import Compile, decide
from .runtime.hooks import Stepping, check_optimizer
from .runtime.runner import Work
from .schedules import Pruning, Schedule
from .selection import NotFiniteError, choose, read_floor
from .statistics import STATISTICS, Place, Statistic
from .summary import Plan, Summary, summarize

Criterion = Callable[..., Tensor]
StatisticMaker = Callable[[Tensor, Place], Statistic]


class Pruner:
    """Prunes a model while an optimizer trains it.

    The model is not touched: its modules, parameters and `state_dict` stay as they are, and a pruned weight is a zero
    that stays one. Everything happens in hooks around `optimizer.step()`.

    Args:
        model: the network, also compiled or data-parallel.
        optimizer: what trains it; it must hold every weight to prune.
        criterion: what a weight is worth, lowest pruned first. Its arguments name the statistics it needs.
        schedule: when to prune, and to what count.
        noise: gradient noise, or its scale; none by default.
        scope: rank over the whole network, or prune each layer alike.
        floor: at least so many weights (an integer), or that share of them (a float), stay in each layer; the total
            stays exact.
        include: which weights instead of those of Linear and convolution modules; see `layers.find_layers`.
        exclude: which weights to leave alone.
        statistics: statistics of your own by name, or known ones with other settings.
        seed: of the statistic `uniform`, and of noise given as a number.
        compile: run the work around a step under `torch.compile`; "auto" does so where the run is long enough to repay
            it, which its steps and sizes alone decide.
    """

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
        self.floor, self._floors = floor, read_floor(floor, [layer.weight.numel() for layer in self.layers], least)
        known: dict[str, StatisticMaker] = {**STATISTICS, **(statistics or {})}
        self._tracked = {key: known[key] for key in requested(criterion, known)}
        for layer in self.layers:
            place = Place(layer.number, seed)
            layer.trackers = {key: make(layer.weight.detach(), place) for key, make in self._tracked.items()}
        works = (self.noise is not None and self.noise.scale > 0) or "flips" in self._tracked
        self._compile, self._work = compile, Work(decide(compile, self.prunable if works else 0, schedule.steps))
        with torch.no_grad():
            self._begin()
            self._prune_at_once()
        self._stepping = Stepping(optimizer, self._before_step, self._after_step)
        self._farewell = weakref.finalize(self, Progress.warn, self._progress)
        attachments.add(self)

    # What a user reads.

    @property
    def step(self) -> int:
        """Optimizer steps taken so far; skipped ones do not count."""
        return self._progress.step

    @property
    def prunable(self) -> int:
        """How many weights there are to prune, pruned ones included."""
        return sum(layer.weight.numel() for layer in self.layers)

    @property
    def nonzero(self) -> int:
        """How many weights the masks keep."""
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
        """For each weight tensor, a boolean tensor of its shape: True where it is kept."""
        return {layer.name: layer.mask for layer in self.layers}

    @property
    def statistics(self) -> dict[str, dict[str, Tensor]]:
        """What the criterion is given: `statistics["flips"]["fc1.weight"]`."""
        return {key: {layer.name: self._value(layer, key) for layer in self.layers} for key in self._tracked}

    def plan(self) -> Plan:
        """Every pruning: the step, the sparsity and the weights kept."""
        return Plan(self._plan)

    def summary(self, example_input: Tensor | tuple[Tensor, ...] | None = None) -> Summary:
        """Each layer: shape, weights, kept, sparsity, dead channels; the totals; and how far the schedule is.

        With an example of the model's input, also how many of the weights lie on a live path from it to the output.
        """
        status = f"{self!r}" if self.finished else f"{self!r}\n{self._progress.complaint()}"
        live: dict[str, tuple[int, int]] = {}
        if example_input is not None:
            from .graph.live_paths import effective_weights

            live = effective_weights(self.model, example_input).layers
        rows = (summarize(layer, live[layer.name][1] if layer.name in live else None) for layer in self.layers)
        return Summary(tuple(rows), status)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(step {self.step:,} of {self.schedule.steps:,}, {len(self.events)} of "
            f"{len(self._plan)} prunings, {self.nonzero:,} of {self.prunable:,} weights kept in {len(self.layers)} "
            f"layers, sparsity {self.sparsity:.4%})"
        )

    # What a user calls.

    @torch.no_grad()
    def apply_to(self, model: nn.Module) -> None:
        """Zeroes the pruned weights in a copy of the model, such as a moving average of its weights."""
        tensors = named_tensors(model)
        if missing := [name for name in self.masks if name not in tensors]:
            raise ValueError(f"this model has no parameter {', '.join(missing)}; give a copy of the one that is pruned")
        for name, mask in self.masks.items():
            tensors[name].masked_fill_(~mask.to(tensors[name].device), 0)

    def remove(self) -> None:
        """Ends pruning: the zeros stay where they are, but are no longer kept at zero."""
        if attachments.discard(self):
            self._stepping.remove()
            self._farewell.detach()
            self._progress.warn()

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on from here, bit for bit; for `torch.save`, read with `weights_only=True`."""
        return {
            "settings": describe(self._settings()),
            "step": self.step,
            "compiled": self._work.compiled,
            "masks": _clones(self.masks),
            "statistics": {
                key: {layer.name: _clones(layer.trackers[key].state) for layer in self.layers} for key in self._tracked
            },
            "events": [event._asdict() for event in self.events],
            "extra": {key: _clones(tensors) for key, tensors in self._extra_state().items()},
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Goes on from a saved state. The model's own weights may be loaded before or after."""
        if missing := {"settings", "step", "compiled", "masks", "statistics", "events", "extra"} - set(state):
            raise ValueError(f"this is not the state of a pruner: it has no {', '.join(sorted(missing))}")
        if lines := difference(state["settings"], describe(self._settings())):
            raise ValueError("the state was saved under other settings than this pruner's:\n  " + "\n  ".join(lines))
        self._restore_copies()
        for layer in self.layers:
            layer.mask.copy_(state["masks"][layer.name])
            layer.count()
            layer.zero()
            for key, tracker in layer.trackers.items():
                for part, tensor in tracker.state.items():
                    tensor.copy_(state["statistics"][key][layer.name][part])
                tracker.loaded()
        if self._compile == "auto":
            self._work = Work(state["compiled"])  # the same path, for the same bits
        self._load_extra_state(state["extra"])
        self.events[:] = [Event(**event) for event in state["events"]]
        self._progress.step, self._progress.finished = state["step"], self.finished
        self._dead = {layer.name for layer in self.layers if not layer.kept}
        return self

    # Around a step.

    def _before_step(self, scale: Tensor | float) -> None:
        for layer in self.layers:
            if layer.weight.grad is not None and layer.weight.grad.layout != torch.strided:
                raise ValueError(f"{layer.name} has a sparse gradient: use sparse=False there, or exclude= it")
        for layer in self.layers:
            if looking := [tracker for tracker in layer.trackers.values() if tracker.looks_before]:
                grad = self._loss_gradient(layer, scale)
                for tracker in looking:
                    tracker.before(layer.weight, grad)
        self._perturb(scale)

    def _loss_gradient(self, layer: Layer, scale: Tensor | float) -> Tensor | None:
        """The gradient of the loss itself, masked, where a scaler has multiplied it by `scale`."""
        grad = layer.weight.grad
        if grad is not None and not layer.dense:
            layer.clear(grad)
        return grad / scale.to(grad.device) if grad is not None and isinstance(scale, Tensor) else grad

    def _perturb(self, scale: Tensor | float) -> None:
        """Masks the gradients, and adds noise to them."""
        self._work.before(self.layers, self.noise, self.step, scale)

    def _after_step(self) -> None:
        for layer in self.layers:
            for tracker in layer.trackers.values():
                tracker.after(layer.weight, layer.mask)
        self._unpruned.clear()
        self._progress.step += 1
        self._settle()
        self._prune_due()

    def _settle(self) -> None:
        """Counts flips, and brings the weights back under the masks after an update."""
        self._work.after(self.layers)

    # A pruning.

    def _begin(self) -> None:
        """What a method does before anything else."""

    def _prune_at_once(self) -> None:
        """The prunings of step 0, if any, with a copy of the weights before them until the first step is taken.

        Someone who resumes may have loaded trained weights already, and builds a pruner that prunes at once: the
        state that is loaded into it next must find those weights whole.
        """
        at_once = bool(self._plan) and self._plan[0].step == 0
        copies = [layer.weight.detach().clone() for layer in self.layers] if at_once else []
        try:
            self._prune_due()
        except BaseException:  # no pruner comes of it, so the weights are given back
            for layer, copy in zip(self.layers, copies, strict=False):
                layer.weight.copy_(copy)
            raise
        self._unpruned = copies

    def _restore_copies(self) -> None:
        for layer, copy in zip(self.layers, self._unpruned, strict=False):
            if torch.equal(layer.weight, copy.masked_fill(~layer.mask, 0)):  # else other weights were loaded since
                layer.weight.copy_(copy)
        self._unpruned.clear()

    def _prune_due(self) -> None:
        while not self.finished and self._plan[len(self.events)].step <= self.step:
            self._prune(self._plan[len(self.events)])
        self._progress.finished = self.finished
        self._warn_of_dead_layers()  # last, for a warning may be an error to someone

    def _prune(self, pruning: Pruning) -> None:
        dtypes = {self._scores(0).dtype, *(layer.weight.dtype for layer in self.layers)}
        try:
            chosen = choose(
                self._scores,
                [layer.mask for layer in self.layers],
                self._keep(pruning),
                floors=self._floors,
                per_layer=self.scope == "layer",
                dtype=torch.float64 if torch.float64 in dtypes else torch.float32,
                run=self._work.run,
            )
        except NotFiniteError as error:
            raise self._not_finite(self.layers[error.tensor], "scores") from None
        for layer, gone in zip(self.layers, chosen, strict=True):
            layer.mask ^= gone
            self._work.zero(layer)
            layer.count()
        kept = {layer.name: layer.kept for layer in self.layers}
        self.events.append(Event(self.step, self.sparsity, self.nonzero, kept))

    def _keep(self, pruning: Pruning) -> int:
        """How many weights a pruning leaves."""
        assert pruning.nonzero is not None, "a schedule that does not say how many needs a method that does"
        return pruning.nonzero

    def _value(self, layer: Layer, key: str) -> Tensor:
        return layer.trackers[key].value(layer.weight.detach(), self.step)

    def _scores(self, number: int) -> Tensor:
        layer = self.layers[number]
        scores = self._work.scores(
            layer, self.criterion, lambda: {key: self._value(layer, key) for key in self._tracked}
        )
        if scores.shape != layer.weight.shape:
            raise ValueError(
                f"the criterion gives scores of shape {tuple(scores.shape)} for {layer.name} of shape "
                f"{tuple(layer.weight.shape)}; it must give one for each weight"
            )
        return scores

    def _not_finite(self, layer: Layer, what: str) -> FloatingPointError:
        return FloatingPointError(
            f"{layer.name} has NaN or infinite {what} at step {self.step}; nothing was pruned. Look for a loss that "
            "diverged (a lower learning rate, gradient clipping) or a criterion that divides by zero"
        )

    def _warn_of_dead_layers(self) -> None:
        for layer in self.layers:
            if layer.weight.numel() and not layer.kept and layer.name not in self._dead:
                self._dead.add(layer.name)
                warn_of_dead_layer(layer.name, self.step)

    # Settings and state.

    def _settings(self) -> dict[str, Any]:
        return {
            "method": type(self).__name__,
            "criterion": self.criterion,
            "schedule": self.schedule,
            "noise": self.noise,
            "statistics": self._tracked,
            "scope": self.scope,
            "floor": self.floor,
            "seed": self.seed,
            "weights": {layer.name: list(layer.weight.shape) for layer in self.layers},
        }

    def _extra_state(self) -> dict[str, dict[str, Tensor]]:
        """What a method keeps beyond masks and statistics."""
        return {}

    def _load_extra_state(self, extra: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Takes it back."""


def _clones(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: tensor.detach().clone() for key, tensor in tensors.items()}
