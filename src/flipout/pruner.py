"""The pruner: a model, an optimizer, and what happens around each optimizer step."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Literal, NoReturn, Self

import torch
from torch import Tensor, nn

from . import guards, problems
from .channels.comparison import NamedExample
from .criteria import Criterion, is_elementwise
from .events import Event, Progress, Selection, warn_of_dead_layers
from .forms import Form, Hidden, SecondChances, as_second_chances
from .kernels import SparseKernelsChoice, as_sparse_kernels, step_loops
from .limits import Floor, by_pattern, check_floors, read_floors
from .modules import named_tensors, normalized_features
from .problems import Capability, Need
from .runtime import attachments
from .runtime.compiler import Compile, decide
from .runtime.kernels import Kernels
from .runtime.noise import GradientNoise, as_noise, warn_of_divergence
from .runtime.scoring import check_scores
from .runtime.steps import StepHooks, unwrap_optimizer
from .runtime.tracking import StatisticMaker, Statistics
from .runtime.work import Work, weakly
from .schedules import Pruning, Schedule
from .shrinking import Shrink, Shrinker
from .state import check_state, load_tensors, read_events, save_state
from .summary import Plan, Summary, summary_of
from .units import (
    SHARES,
    TITLES,
    DeadFirst,
    DeadWeights,
    GranularityChoice,
    PooledUnits,
    Ranking,
    Reduction,
    Target,
    Units,
    as_granularity,
    units_for,
)
from .views.dtensors import refuse_old_sharding
from .views.matching import zero_where_pruned
from .weights import Coverage, Patterns, Weight, coverage_of, find_weights, warn_of_low_coverage

ALONE = (
    "a pruner cannot be pickled or copied by itself, because its hooks belong to its optimizer and its masks to the "
    "parameters of its model. Save pruner.state_dict(), and load it into a new pruner of the copied model and "
    "optimizer. Or copy all three together: copy.deepcopy((model, optimizer, pruner)). If the pruner is an attribute "
    "of a module that is copied, keep it elsewhere"
)


class Pruner:
    """Prune a model while an optimizer trains it.

    The model is not modified: its modules, parameters and `state_dict` stay as they are, and a pruned weight is a zero
    that stays zero. Everything happens in hooks: gradients are masked as they are accumulated, and the rest is done
    around `optimizer.step()`.

        >>> schedule = flipout.Geometric(0.9, steps=epochs * len(loader))
        >>> pruner = flipout.Pruner(model, optimizer, criterion=flipout.criteria.magnitude, schedule=schedule)
        >>> train()
        >>> pruner
        Pruner(step 12 of 12, 5 of 5 prunings, 26 of 256 weights kept in 2 layers, sparsity 89.8438%)

    A method of your own is a subclass. It can override `start` (the initial state), `keep`, `score`, `select`, `prune`
    and `record` (an event), `stepped` (after each update), and `settings`, `extra_state` and `load_extra_state` (what
    is compared and saved). What the optimizer trains is a `Form`.

    Args:
        model: the network; it may be compiled or data-parallel.
        optimizer: the optimizer that trains it; it must hold every weight to prune.
        criterion: the score of a weight, lowest pruned first. Its arguments name the statistics it needs.
        schedule: when to prune, and to what count.
        sparsities: sparsities by name pattern, in place of that of the schedule. The first pattern that matches a
            weight counts, and weights that none matches are left alone.
        noise: gradient noise, or its scale; none by default.
        scope: "global" ranks all weights together; "layer" prunes every layer by the same share.
        floor: the least number of weights (an integer) or share of weights (a float) that each layer keeps, or such
            numbers by name pattern: `{"classifier.*": 0.5, "*": 0.1}`. The first pattern that matches counts. The total
            stays exact.
        granularity: what is pruned as one unit: "weight", "kernel" (a filter plane), "channel" (an output channel with
            everything that is tied to it or reads it), a block `(rows, columns)`, or a pattern such as "2:4".
        reduce: how the scores of the weights of a unit become its score: "mean", "sum" or "norm".
        target: what the sparsity is a share of, with `granularity="channel"`: "weights", "macs" (the multiply-adds
            with weights), "parameters" (of the whole model), or "latency" (measured before the first step).
        round_to: with `granularity="channel"`, the number of channels that a layer keeps is a multiple of this.
        residual: with `granularity="channel"`, whether channels that norms mix are pruned too, such as those of the
            residual stream of a transformer. All that belongs to such a channel becomes zero, also biases and
            embeddings.
        dead_first: prune weights that lie on no live path from the input to the output before all others. It does not
            apply to a pruning at step 0, before the model was called.
        include: which weights to prune instead of the usual ones: a name pattern such as "classifier.*", a list of
            patterns, or a function `(name, module, parameter) -> bool`.
        exclude: which weights to leave out, in the same way.
        second_chances: whether pruned weights keep a hidden value that learns, so that they can come back: a
            `SecondChances`, True for its defaults, or None for permanent pruning.
        form: what the optimizer trains and what the network computes with, if that is not the same; a `Form` of your
            own. `second_chances` is one.
        statistics: your own statistics by name, or known ones with other settings.
        seed: the seed of the statistic `uniform`, and of noise given as a number.
        compile: how the work around a step runs. "auto" uses loops in C for float32 weights on the CPU. The rest is
            compiled by torch if the run is long enough, which depends only on the number of steps and the sizes of the
            weights. True compiles everything, and False uses plain torch operations.
        sparse_kernels: whether layers that are sparse enough compute with their kept weights only, with kernels in C
            for float32 on the CPU. True warns where that is not possible, "auto" does not. See `flipout.kernels`.
    """

    tracks: ClassVar[tuple[str, ...]] = ()
    """Statistics that a method needs beyond those that its criterion asks for."""

    requires: ClassVar[Mapping[Need, str]] = {}
    """What a method needs, each with the reason; see `flipout.problems`. Needs that follow from what it overrides are
    found without it."""

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
        sparsities: Mapping[str, float] | None = None,
        noise: GradientNoise | float | None = None,
        scope: Literal["global", "layer"] = "global",
        floor: Floor = 0,
        granularity: GranularityChoice = "weight",
        reduce: Reduction = "mean",
        target: Target = "weights",
        round_to: int = 1,
        residual: bool = False,
        dead_first: bool = False,
        include: Patterns | None = None,
        exclude: Patterns | None = None,
        second_chances: SecondChances | bool | None = None,
        form: Form | None = None,
        statistics: Mapping[str, StatisticMaker] | None = None,
        seed: int = 0,
        compile: Compile = "auto",  # noqa: A002
        sparse_kernels: SparseKernelsChoice = False,
    ) -> None:
        if torch.is_inference_mode_enabled():
            raise RuntimeError("a pruner cannot be attached under torch.inference_mode(): leave that mode first")
        if scope not in ("global", "layer"):
            raise ValueError(f"scope is {scope!r}; give 'global' or 'layer'")
        if not isinstance(schedule, Schedule):
            raise TypeError(f"schedule is {schedule!r}; give a schedule, such as flipout.Geometric(0.99, steps)")
        refuse_old_sharding(model.modules())
        self.model, self.optimizer = model, unwrap_optimizer(optimizer)
        self.criterion, self.schedule, self.scope, self.seed = criterion, schedule, scope, seed
        self.noise = as_noise(noise, seed)
        warn_of_divergence(self.noise, self.optimizer, schedule.steps)
        self.weights: list[Weight] = find_weights(
            model, self.optimizer, include, exclude, adapters=self.covers_adapters
        )
        warn_of_low_coverage(model, self.weights, include, exclude)
        self.sparsities = sparsities
        if sparsities is not None:
            pruned = {weight for own in by_pattern(sparsities, self.weights, "sparsity").values() for weight in own}
            self.weights = [weight for weight in self.weights if weight in pruned]
        attachments.refuse_second(self.weights)

        self.granularity = as_granularity(granularity, reduce, target, round_to, residual)
        self.floor, self.floors = floor, read_floors(floor, self.weights)
        self.dead: DeadWeights = DeadFirst() if dead_first else DeadWeights()
        chances = as_second_chances(second_chances)
        if form is not None and chances is not None:
            raise ValueError(
                "form= and second_chances= exclude each other, because second chances are a form: leave one of them out"
            )
        features = () if self.granularity.kind == "channel" else normalized_features(model)
        self.form = form or Form() if chances is None else Hidden(chances, features)
        self.statistics = Statistics(self.weights, criterion, self.tracks, statistics or {}, seed)
        self.units = Units()  # which needs nothing
        self._refuse_incompatible(chances is not None)
        self.units = self._make_units()
        planned = schedule.plan(self.prunable if target == "weights" else SHARES)
        if target == "weights" and sparsities is None:
            counted = [pruning.nonzero for pruning in planned if pruning.nonzero is not None]
            check_floors(self.floors, min(counted, default=self.prunable), floor)
        planned = self.units.planned(planned, self.prunable, self.floors)
        self._plan = self.form.plan(planned, schedule.steps)

        self.events: list[Event] = []
        self._dead_layers: set[str] = set()
        self._progress = Progress(self._plan[-1].step if self._plan else 0, schedule.steps, problems.users_line())
        self._compile = compile
        in_c = (
            compile == "auto"
            and step_loops.available()
            and all(step_loops.fits(weight.local) for weight in self.weights)
        )
        compiled = decide(compile, self.prunable if self._works_every_step(in_c) else 0, schedule.steps)
        self.work = Work(self.weights, self.optimizer, self.noise, Kernels(compiled, in_c))
        self.shrinker, self.sparse_kernels = Shrinker(self), as_sparse_kernels(sparse_kernels)
        at_once = self._plan[:1] and self._plan[0].step == 0
        self._at_once = guards.AtOnce(self.weights if at_once else (), self.optimizer)
        self.guards: list[guards.Guard] = [guards.Ranks()]  # the only one that sees a pruning at step 0
        try:
            with torch.no_grad():
                self.start()
                self._prune_due()
            own_start = type(self).start is not Pruner.start or type(self.form).slots is not Form.slots
            self.guards += [
                guards.Ownership(self.weights, self.optimizer),
                guards.FirstStep(self, own_start),
                guards.Zeros(),
                self._at_once,
            ]
            self._attach()
        except BaseException:
            with torch.no_grad():
                self._at_once.restore()
            raise

    def _make_units(self) -> Units:
        """What is pruned as one: in pools if weights have different sparsities."""

        def units_of(weights: Sequence[Weight], sparsity: float | None) -> Units:
            return units_for(self.granularity, weights, sparsity, per_layer=self.scope == "layer")

        if self.sparsities is None:
            is_known = all(pruning.nonzero is not None for pruning in self.schedule.plan(self.prunable))
            return units_of(self.weights, self.schedule.sparsity if is_known else None)
        if self.granularity.kind == "channel":
            raise ValueError(
                "granularity='channel' takes one sparsity, because channels belong to several layers: limit layers "
                "with floor="
            )
        pools = by_pattern(self.sparsities, self.weights, "sparsity")
        shares = [(self.sparsities[pattern], own) for pattern, own in pools.items() if own]
        return PooledUnits(self.weights, shares, self.schedule, units_of)

    def _attach(self) -> None:
        """Register everything that belongs to the optimizer and the model; a copy of the pruner does this too."""
        attachments.add(self)  # before the hooks, because it fails if another thread has just attached a pruner
        self._hooks = StepHooks(self.optimizer, self._before_step, self._after_step, self._abandon_step)
        self.work.watch(weakly(self._learns_pruned))
        self.shrinker.attach()
        self.sparse_kernels.attach(self)
        self.dead.watch(self.model)
        self.units.watch(self.model)
        self.form.watch(self.model, self.work)
        self._farewell = weakref.finalize(self, guards.warn_at_the_end, self._progress, weakref.ref(self))

    def remove(self) -> None:
        """Detach from the optimizer. The zeros stay in the model, but training no longer keeps them at zero.

        A shrunk network is expanded.
        """
        if attachments.discard(self):
            beside = self.sparse_kernels, self.shrinker, self.dead, self.units
            for attached in (*beside, self._hooks, self.work.gradients):
                attached.remove()
            with torch.no_grad():
                self.form.remove(self.work)
            self._farewell.detach()
            self._progress.warn()
            for guard in self.guards:
                guard.removed(self)

    # A step.

    def _before_step(self, scale: Tensor | float) -> None:
        """The gradients are complete; `scale` is the factor that a gradient scaler has multiplied them with."""
        self.shrinker.before_step()
        self.units.ready(self.model)
        for guard in self.guards:
            guard.before_step(self)
        for weight in self.weights:
            weight.view.prepare(weight.parameter)
        self.work.gradients.complete()
        self.form.enter(self.work)
        self.statistics.before(self.work.gradients, scale, self.form.learns_pruned, self.finished)
        self.form.gradients(self.work, self.step, scale)

    def _after_step(self) -> None:
        """The optimizer has updated what is trained."""
        self.statistics.after(self.form.learning)
        self._progress.step += 1
        self.form.settle(self.work, self.step)
        self.statistics.settled(self.step)
        self.work.gradients.done()
        for guard in self.guards:
            guard.after_step(self)
        self.stepped()
        self._prune_due()
        self.units.hold_zeros(self.model)
        self.shrinker.after_step()
        self.sparse_kernels.update()

    def _abandon_step(self) -> None:
        """A step has failed, or is about to compute its gradients again."""
        self.form.leave(self.work)
        for group in self.work.groups:  # the update may have moved weights that are permanently pruned
            if not group.dense:
                group.zero()

    # An event.

    @property
    def due(self) -> Pruning | None:
        """The next event of the plan; None after the last."""
        return None if self.finished else self._plan[len(self.events)]

    def _prune_due(self) -> None:
        while (pruning := self.due) is not None and pruning.step <= self.step:
            self.prune(pruning)
        self._progress.finished = self.finished
        if self.form.permanent(self.step):
            self.form.freeze(self.work)
        if self.permanent:  # last, because a warning may be turned into an error
            dead = [w.name for w in self.weights if w.size and not w.kept and w.name not in self._dead_layers]
            self._dead_layers.update(dead)
            if dead:
                warn_of_dead_layers(dead, self.step)

    def prune(self, pruning: Pruning) -> None:
        """Carry out one event of the plan: score, select, apply, record."""
        keep = self.keep(pruning)
        with self.form.ranked(self.work):
            selection = self.select(keep)
            if type(self).select is not Pruner.select:  # ours is exact by construction
                selection.check(type(self).__name__, self.weights, keep, self.floors)
            for guard in self.guards:
                guard.before_apply(self, selection)
            self.form.apply(self.work, selection)
        self.record(selection)

    def keep(self, pruning: Pruning) -> int:
        """How many weights are kept after a pruning: the number in the plan. With `target=`, its cost that is kept."""
        return self.units.keep(pruning, self.model)

    def select(self, keep: int) -> Selection:
        """Choose what to prune, and what to grow, so that exactly `keep` weights are kept."""
        return self.units.select(self.ranking(), keep)

    def ranking(self) -> Ranking:
        """What an event ranks at this step."""
        return Ranking(
            self.model,
            self.step,
            self.weights,
            self.score,
            self.floors,
            self.scope == "layer",
            self.form.ranks_pruned(self.step),
            lambda keep: self.form.returning(self.step, keep),
            self.dead,
            self.work.kernels.elementwise,
        )

    def score(self, weight: Weight) -> Tensor:
        """The score of each element of a weight; the lowest are pruned first."""
        asked, value = self.statistics.asked, self.statistics.value
        scores = self.work.kernels.scores(
            weight, self.criterion, asked, lambda: {key: value(weight, key) for key in asked}
        )
        return check_scores(scores, self.criterion, weight)

    def record(self, selection: Selection) -> None:
        """Append an `Event` to `events`."""
        kept = {weight.name: weight.kept for weight in self.weights}
        grown, reached = selection.count_grown(self.weights), self.units.reached()
        self.events.append(Event(self.step, self.sparsity, self.nonzero, kept, grown, reached))

    # What a method overrides.

    def start(self) -> None:
        """Take the initial state that a method and its form need from the weights.

        It is called when the pruner is attached. If the weights are changed after that, for example by loading a
        checkpoint, it is called again before the first step, unless a state was loaded.
        """
        self.form.start(self.work)

    def stepped(self) -> None:
        """Called after each update, before the events that are due. Does nothing by default."""

    def settings(self) -> dict[str, Any]:
        """What a saved state must agree with. A subclass adds its own: `super().settings() | {"p": self.p}`."""
        return {
            "method": type(self).__name__,
            "criterion": self.criterion,
            "schedule": self.schedule,
            "noise": self.noise,
            "statistics": self.statistics.makers,
            "scope": self.scope,
            "sparsities": self.sparsities,
            "floor": self.floor,
            "granularity": self.granularity,
            "dead_first": type(self.dead) is DeadFirst,
            "form": self.form.settings(),
            "seed": self.seed,
            "weights": {weight.name: list(weight.view.positions.shape) for weight in self.weights},
        }

    def extra_state(self) -> dict[str, dict[str, Tensor]]:
        """Tensors that a method keeps beyond masks and statistics, saved with the state. None by default.

        The names, shapes and dtypes must be the same at every step. Loading a state with others is an error.
        """
        return {}

    def load_extra_state(self, extra: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Restore what `extra_state` returned. `self.step` is already that of the state."""

    def needs(self) -> dict[Need, str]:
        """What this pruner needs, each with the reason: declared in `requires`, or found in what a subclass
        overrides."""
        scores: dict[Need, str] = {} if is_elementwise(self.criterion) else problems.WHOLE_SCORES
        own = {need: why for name, need, why in problems.OVERRIDDEN if _overrides(type(self), name)}
        return {**own, **self.form.needs, **self.units.needs, **self.statistics.needs(), **scores, **self.requires}

    def _refuse_incompatible(self, second_chances: bool) -> None:
        """Refuse capabilities that were asked for and that the method, or something else, is incompatible with."""
        sharded = [weight.name for weight in self.weights if weight.view.key is not None]
        asked: list[tuple[bool, Capability, str]] = [
            (bool(sharded), "shards", f"sharded weights (DTensors), such as {', '.join(sharded[:1])}"),
            (self.granularity.kind != "weight", "units", f"granularity={str(self.granularity)!r}"),
            (second_chances, "second chances", "second_chances="),
            (self.sparsities is not None, "units", "sparsity= by name pattern"),
        ]
        needs = self.needs() | self.dead.needs("pool" if self.sparsities is not None else self.granularity.kind)
        for is_asked, capability, what in asked:
            if is_asked and (problem := problems.incompatibility(needs, capability, type(self).__name__, what)):
                raise ValueError(problem)

    def _works_every_step(self, in_c: bool) -> bool:
        """Whether there is work around every step, beyond what loops in C do if they are used."""
        noisy = self.noise is not None and self.noise.scale > 0
        own = not self.form.in_c() if in_c else noisy or type(self.form) is not Form
        return own or self.statistics.has_kernels(in_c)

    def _learns_pruned(self, weight: Weight) -> bool:
        """Whether something learns from the gradients of the pruned elements of a weight at the moment."""
        return self.form.learns_pruned(weight) or self.statistics.learn_pruned(self.finished)

    def masks_are_stale(self) -> bool:
        """Whether weights were changed since a pruning at step 0 that depends on them."""
        return set(self.statistics.asked) != {"uniform"} and self._at_once.changed()

    # Saving and loading.

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue bit for bit; for `torch.save`, loadable with `weights_only=True`.

        A shrunk network is saved within `expanded()`.
        """
        shrunk = self.shrinker.saved()
        for guard in self.guards:
            guard.saving(self)
        return save_state(self, self.work.kernels, shrunk)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Continue from a saved state. The model's weights may be loaded before or after.

        A state that does not fit raises an error and changes nothing. If the network was shrunk when the state was
        saved, it is shrunk again. Then load the weights and the optimizer's state before this one.
        """
        with self.expanded():
            check_state(self, state, starts_dense=not _overrides(type(self), "start"))
            finished = len(read_events(state["events"])) >= len(self._plan)
            self.shrinker.check(state["shrunk"], state["masks"], finished=finished)
        self.expand()
        before, self._progress.step = self.step, state["step"]
        try:
            self.load_extra_state(state["extra"])  # first: a method of your own may refuse it
        except BaseException:
            self._progress.step = before
            raise
        self._at_once.restore_pruned()
        if self._compile == "auto":
            self.work.kernels = Kernels(state["compiled"], state["in_c"])  # the same path gives the same bits
        load_tensors(self, state)
        self._progress.finished = self.finished
        self._dead_layers = {weight.name for weight in self.weights if not weight.kept}
        for guard in self.guards:
            guard.loaded(self)
        self.shrinker.load(state["shrunk"])
        self.sparse_kernels.load(state["sparse_kernels"])
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy the pruner if its model and its optimizer are copied in the same call, before it."""
        if id(self.model) not in memo or id(self.optimizer) not in memo:
            raise TypeError(ALONE)
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        for name, value in vars(self).items():
            if name not in ("_hooks", "_farewell", "work"):  # which belong to the original
                vars(new)[name] = copy.deepcopy(value, memo)
        new.work = Work(new.weights, new.optimizer, new.noise, self.work.kernels.renewed())
        if self.attached:
            new._attach()
        return new

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(ALONE)

    # Reading.

    @property
    def step(self) -> int:
        """The number of optimizer steps taken; skipped ones do not count."""
        return self._progress.step

    @property
    def finished(self) -> bool:
        """Whether the last pruning is done."""
        return len(self.events) >= len(self._plan)

    @property
    def permanent(self) -> bool:
        """Whether no pruned weight can come back from now on. A method that grows weights overrides it."""
        return self.form.permanent(self.step)

    @property
    def learns_pruned(self) -> bool:
        """Whether something learns from the gradients of pruned weights, or will: they have to be computed."""
        return not self.permanent or self.statistics.learn_pruned(self.finished)

    @property
    def attached(self) -> bool:
        """Whether the pruner is attached to its optimizer."""
        return attachments.contains(self)

    @property
    def prunable(self) -> int:
        """The number of weights that the pruner covers: kept and pruned ones."""
        return sum(weight.size for weight in self.weights)

    @property
    def nonzero(self) -> int:
        """The number of weights that the masks keep. See `lost_zeros` for whether the model agrees."""
        return sum(weight.kept for weight in self.weights)

    @property
    def sparsity(self) -> float:
        """`1 - nonzero / prunable`, from the masks. `check` compares the masks with the weights of the model."""
        return 1 - self.nonzero / self.prunable

    @property
    def masks(self) -> dict[str, Tensor]:
        """For each weight tensor, a boolean tensor of its shape: True where the weight is kept. It is a DTensor of the
        same layout if the weight is one."""
        return {weight.name: weight.view.shown(weight.mask) for weight in self.weights}

    def plan(self) -> Plan:
        """Every pruning: the step, the sparsity and the weights kept. Print it.

        With `granularity="channel"` these are the most weights that are kept: see `events` for the exact numbers. With
        `target=` the sparsity is that of the target, and another column shows what was reached so far.
        """
        reached = [event.reached for event in self.events]
        return Plan(self._plan, TITLES[self.granularity.target], reached)

    def coverage(self) -> Coverage:
        """How much of the model this pruner covers, and what it leaves out. Print it."""
        return coverage_of(self.model, self.weights, self.shrinker.shapes)

    def summary(self, example_input: NamedExample | None = None) -> Summary:
        """A table of the layers (shape, weights, kept, sparsity, dead channels) and the progress of the schedule.

        With an example of the model's input (a tensor, a tuple, or a dictionary of arguments by name), the table also
        shows how many weights lie on a live path from the input to the output. If the model cannot be recorded, all
        nonzero weights count, and a line below the table says so. Pruned weights that are not zero in the model are
        named below it, and cause a `LostZerosWarning`.
        """
        lost = self.lost_zeros()
        guards.warn_of_lost_zeros(self.masks, lost)
        status = [repr(self), *([] if self.finished else [self._progress.complaint()])]
        status += [guards.complaint(self.masks, lost)] if lost else []
        with self.expanded():
            return summary_of(self.model, self.weights, self.events, status, self.units.status(), example_input)

    def lost_zeros(self, model: nn.Module | None = None) -> dict[str, int]:
        """For each weight tensor that has any: how many pruned weights are not zero in the model, or in a copy of it.

        Empty if the weights agree with the masks.
        """
        if model is not None:
            self.shrinker.refuse_copy(model)
        return guards.count_lost_zeros(self.masks, self.model if model is None else model)

    def check(self, model: nn.Module | None = None) -> None:
        """Raise a ValueError if pruned weights are not zero in the model, or in a copy such as a moving average."""
        if lost := self.lost_zeros(model):
            raise ValueError(guards.complaint(self.masks, lost))

    @torch.no_grad()
    def apply_to(self, model: nn.Module) -> None:
        """Zero the pruned weights in the model or in a copy of it, such as a moving average of its weights."""
        tensors = named_tensors(model)
        if model is self.model:  # in which FSDP2 may have put gathered weights
            tensors |= {weight.name: weight.parameter for weight in self.weights}
        self.shrinker.refuse_copy(model)
        for name, mask in self.masks.items():
            if name not in tensors or tensors[name].shape != mask.shape:
                raise ValueError(f"this model has no parameter {name} of that shape; pass a copy of the pruned model")
        for name, mask in self.masks.items():
            zero_where_pruned(tensors[name], mask)
        self.units.hold_zeros(model)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(step {self.step:,} of {self.schedule.steps:,}, {len(self.events)} of "
            f"{len(self._plan)} prunings, {self.nonzero:,} of {self.prunable:,} weights kept in {len(self.weights)} "
            f"layers, sparsity {self.sparsity:.4%})"
        )

    # A smaller network in training; see `flipout.shrinking.Shrinker` for each of these.

    @property
    def shrunk(self) -> bool:
        """Whether channels are removed from the network at the moment."""
        return self.shrinker.shrunk

    @property
    def shrinks(self) -> Sequence[Shrink]:
        """The shrinks so far."""
        return self.shrinker.shrinks

    @property
    def shrunk_indices(self) -> Mapping[str, tuple[Tensor | None, ...]]:
        """For each parameter and buffer that has lost channels, the original indices that are left, per dimension."""
        return self.shrinker.indices

    @property
    def computed(self) -> int:
        """The prunable weights that the network computes with: all of them, unless it is shrunk."""
        return sum(weight.parameter.numel() for weight in self.weights)

    @property
    def worth_shrinking(self) -> bool:
        """Whether `shrink` would save more time than it takes. Read it after each step; it changes at prunings only."""
        return self.shrinker.worth_shrinking

    def shrink(self, example_input: NamedExample) -> nn.Module:
        """Remove the channels that influence nothing from the network, and return it. Training continues as before."""
        self.shrinker.shrink(example_input)
        return self.model

    def expand(self) -> nn.Module:
        """Put all channels back, and return the network: the original architecture, with the same outputs."""
        self.shrinker.expand()
        return self.model

    def expanded(self) -> AbstractContextManager[nn.Module]:
        """Expand the network for a moment, to save or to look at it; after that it is shrunk again."""
        return self.shrinker.expanded()

    def follow(self, copy: nn.Module) -> None:
        """Shrink and expand a copy of the model together with it, such as a moving average of its weights."""
        self.shrinker.follow(copy)


def _overrides(cls: type[Pruner], name: str) -> bool:
    return getattr(cls, name) is not getattr(Pruner, name)
