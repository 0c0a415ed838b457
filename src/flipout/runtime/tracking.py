"""The statistics of a pruner: made for each weight, updated around each step, and read by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from ..criteria import Criterion, statistics_of
from ..kernels.step_loops import loop_of
from ..problems import Need
from ..statistics import CALIBRATED, STATISTICS, Place, Statistic
from ..statistics.values import fan_in_of
from ..weights import Weight
from .gradients import Gradients

StatisticMaker = Callable[[Tensor, Place], Statistic]


class Statistics(Mapping[str, dict[str, Tensor]]):
    """The values of the statistics, by name and weight: `statistics["flips"]["fc1.weight"]`.

    Args:
        weights: the weights of a pruner.
        criterion: the criterion, whose arguments name what it needs.
        further: names that the method needs beyond those.
        own: statistics of the user's by name, or known ones with other settings.
        seed: the seed of random statistics.
    """

    def __init__(
        self,
        weights: Sequence[Weight],
        criterion: Criterion,
        further: Sequence[str],
        own: Mapping[str, StatisticMaker],
        seed: int,
    ) -> None:
        self._weights, self._step = weights, 0
        known: dict[str, StatisticMaker] = {**STATISTICS, **statistics_of(criterion), **own}
        self.asked = requested(criterion, known)
        """The statistics that the criterion takes."""
        if unknown := [key for key in further if key not in known]:
            raise ValueError(f"the method tracks {', '.join(unknown)}; the statistics are {', '.join(known)}")
        self.makers = {key: known[key] for key in dict.fromkeys([*self.asked, *further])}
        """All statistics that are kept up to date, by name."""
        for weight in weights:
            place = Place(weight.number, seed, fan_in_of(weight.module, weight.parameter), weight.view.positions)
            weight.statistics = {key: make(weight.local.detach(), place) for key, make in self.makers.items()}
            for key, statistic in weight.statistics.items():
                statistic.check_shapes(key, weight.local)

    def __getitem__(self, name: str) -> dict[str, Tensor]:
        return {weight.name: weight.view.shown(self.value(weight, self.known(name))) for weight in self._weights}

    def __iter__(self) -> Iterator[str]:
        return iter(self.makers)

    def __len__(self) -> int:
        return len(self.makers)

    def known(self, name: str) -> str:
        if name not in self.makers:
            raise KeyError(f"{name!r} is not tracked; the statistics of this pruner are {', '.join(self.makers)}")
        return name

    def value(self, weight: Weight, name: str) -> Tensor:
        """The value of a statistic of a weight, for the elements that are here."""
        return weight.statistics[name].value(weight.local.detach(), self._step)

    def started(self) -> None:
        """Called before the first step."""
        for weight in self._weights:
            for statistic in weight.statistics.values():
                statistic.started(weight.local)

    def before(
        self, gradients: Gradients, scale: Tensor | float, learns_pruned: Callable[[Weight], bool], finished: bool
    ) -> None:
        """Called before an update. The parameters hold what is trained. `finished`: the last pruning is done."""
        for weight in self._weights if self._compares else ():
            if weight.view.version(weight.parameter) != weight.settled_version:
                for statistic in weight.statistics.values():
                    statistic.changed(weight.local)
        for name, cls in self._kinds():
            if cls.before is Statistic.before and _function(cls, "before_all") is _function(Statistic, "before_all"):
                continue
            if finished and cls.only_for_prunings:
                continue
            grads = [_shown(weight, cls, gradients, scale, learns_pruned) for weight in self._weights]
            locals_ = [weight.local for weight in self._weights]
            cls.before_all([weight.statistics[name] for weight in self._weights], locals_, grads)

    def after(self, learning: Callable[[Weight], Tensor]) -> None:
        """Called after an update. `learning` marks what the optimizer trains."""
        for name, cls in self._kinds():
            if any(weight.statistics[name].kernel is not None for weight in self._weights):
                continue
            if cls.after is Statistic.after and _function(cls, "after_all") is _function(Statistic, "after_all"):
                continue
            masks = [learning(weight) for weight in self._weights]
            locals_ = [weight.local for weight in self._weights]
            cls.after_all([weight.statistics[name] for weight in self._weights], locals_, masks)

    def settled(self, step: int) -> None:
        """Called when pruned weights are zero again, after an update that counts as `step`."""
        self._step = step
        for weight in self._weights if self._compares else ():
            weight.settled_version = weight.view.version(weight.parameter)

    @property
    def _compares(self) -> bool:
        """Whether a statistic wants to know of changes that are not steps."""
        return any(cls.changed is not Statistic.changed for _, cls in self._kinds())

    def learn_pruned(self, finished: bool) -> bool:
        """Whether a statistic needs the gradients of pruned weights."""
        kinds = [type(statistic) for statistic in self._weights[0].statistics.values()]
        return any(cls.gradient == "unmasked" and not (cls.only_for_prunings and finished) for cls in kinds)

    def has_kernels(self, in_c: bool) -> bool:
        """Whether statistics have kernels, or with `in_c`: kernels without a loop in C."""
        kernels = [statistic.kernel for statistic in self._weights[0].statistics.values()]
        return any(kernel is not None and not (in_c and loop_of(kernel)) for kernel in kernels)

    def needs(self) -> dict[Need, str]:
        """What the statistics are incompatible with."""
        needs: dict[Need, str] = {}
        for key, statistic in self._weights[0].statistics.items():
            if statistic.gradient == "unmasked":
                always = not statistic.only_for_prunings
                need: Need = "pruned gradients always" if always else "pruned gradients"
                needs[need] = f"the statistic {key!r} needs the gradients of pruned weights"
        for weight in self._weights:
            for key, statistic in weight.statistics.items():
                if odd := [part for part, state in statistic.elements.items() if state.shape != weight.mask.shape]:
                    needs["whole weights"] = (
                        f"the state {', '.join(odd)} of the statistic {key!r} does not have the shape of the weight. "
                        "Keep one number for each weight, or name what belongs to the whole weight in `shared`, and "
                        "compute it equally on every rank"
                    )
        return needs

    def load(self, step: int) -> None:
        """Called after saved states were copied into the statistics."""
        self._step = step
        for weight in self._weights:
            weight.settled_version = ()
            for statistic in weight.statistics.values():
                statistic.loaded()

    def _kinds(self) -> list[tuple[str, type[Statistic]]]:
        """The names of the statistics, and the class of each. Those of unmasked gradients come first, because the
        gradients are masked in place for the others."""
        kinds = [(key, type(statistic)) for key, statistic in self._weights[0].statistics.items()]
        return sorted(kinds, key=lambda kind: kind[1].gradient != "unmasked")


def requested(criterion: Callable[..., Any], known: Mapping[str, Any]) -> list[str]:
    """The statistics that a criterion asks for: its arguments without a default value."""
    try:
        parameters = inspect.signature(criterion).parameters.values()
    except (ValueError, TypeError):
        raise ValueError(
            f"{criterion} has no readable signature; wrap it: lambda weight: {criterion}(weight)"
        ) from None
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    names = [p.name for p in named if p.default is p.empty]
    if not names:
        raise ValueError("the criterion takes no statistics; its arguments must name what it needs, such as `weight`")
    if calibrated := [name for name in names if name in CALIBRATED and name not in known]:
        raise ValueError(
            f"the criterion asks for {', '.join(calibrated)}, which calibration batches show and training does not: "
            "pass the criterion to flipout.prune(model, batches, method=criterion)"
        )
    if unknown := [name for name in names if name not in known]:
        raise ValueError(
            f"the criterion asks for {', '.join(unknown)}, but the statistics are {', '.join(known)}. Give a setting a "
            "default value, or pass a statistic of your own with statistics="
        )
    return names


def _shown(
    weight: Weight,
    cls: type[Statistic],
    gradients: Gradients,
    scale: Tensor | float,
    learns_pruned: Callable[[Weight], bool],
) -> Tensor | None:
    """The gradient that a statistic asks for, without the factor of a gradient scaler."""
    if cls.gradient is None:
        return None
    unmasked = cls.gradient == "unmasked" or learns_pruned(weight)
    grad = gradients.full(weight) if unmasked else weight.grad
    if grad is None:
        return None
    if not unmasked and not weight.dense:
        weight.clear(grad)
    return grad / scale.to(grad.device) if isinstance(scale, Tensor) else grad


def _function(cls: type, name: str) -> Any:
    return getattr(getattr(cls, name), "__func__", None)
