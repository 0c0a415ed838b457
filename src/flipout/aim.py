"""The aim test: is a hypothesised value a local optimum of a weight? (Sec. 2.1)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from .pruner import Pruner
from .runtime import attachments
from .runtime.steps import StepHooks, unwrap_optimizer
from .weights import Patterns, find_weights

Hypothesis = float | Tensor | Mapping[str, float | Tensor]


class AimTest:
    """Count how often each weight over-shoots and under-shoots a hypothesised optimum `phi` during training.

    In one optimizer step a weight over-shoots if it crosses `phi`, that is if `sgn(theta - phi)` changes. It
    under-shoots if it comes closer on the same side. The test is positive where the count exceeds `kappa`: then `phi`
    is assumed to be a local optimum. FlipOut is this test at `phi = 0`, where an over-shoot is a sign flip.

    The test can be used beside a pruner. It counts the hidden values of pruned weights, if they have any, and nothing
    for weights that are pruned permanently. Attach the test before the pruner, so that it sees the weights of a step
    before they are pruned.

        >>> aim = flipout.AimTest(model, optimizer, phi=0.0, kappa=10)
        >>> train()
        >>> positive = aim.positive["0.weight"]  # booleans: where the test is positive
        >>> over_shoots = aim.over_shoots["0.weight"]  # integers of the weight's shape
        >>> score = aim.score()["0.weight"]  # |theta - phi|^2 / (shots + 1): low is close and often aimed at

    Args:
        model: the network; it is not changed.
        optimizer: the optimizer that trains it.
        phi: a number, a tensor that can be expanded to every weight, or a mapping from names to such values.
        kappa: the count above which the test is positive.
        counting: which shots count: both kinds, or over-shoots alone (enough with gradient noise).
        include: which weights, as for a pruner.
        exclude: which weights to leave out.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        phi: Hypothesis = 0.0,
        kappa: int = 0,
        counting: Literal["both", "over-shoots"] = "both",
        include: Patterns | None = None,
        exclude: Patterns | None = None,
    ) -> None:
        optimizer = unwrap_optimizer(optimizer)
        if counting not in ("both", "over-shoots"):
            raise ValueError(f"counting is {counting!r}; give 'both' or 'over-shoots'")
        if kappa < 0:
            raise ValueError(f"kappa is {kappa}; give a number of shots, at least 0")
        self.kappa, self.counting = kappa, counting
        weights = find_weights(model, optimizer, include, exclude)
        if sharded := [weight.name for weight in weights if weight.view.key is not None]:
            raise ValueError(
                f"the aim test is incompatible with sharded weights (DTensors), such as {sharded[0]}: train with "
                "DistributedDataParallel, or leave them out with exclude="
            )
        self._weights = {weight.name: weight.parameter for weight in weights}
        self.phi = {name: _hypothesis(phi, name, weight) for name, weight in self._weights.items()}
        self.over_shoots = {n: torch.zeros_like(w, dtype=torch.int32) for n, w in self._weights.items()}
        self.under_shoots = {n: torch.zeros_like(w, dtype=torch.int32) for n, w in self._weights.items()}
        self._hooks = StepHooks(optimizer, self._before_step, self._after_step)

    @property
    def shots(self) -> dict[str, Tensor]:
        """The shots that count."""
        if self.counting == "over-shoots":
            return self.over_shoots
        return {name: over + self.under_shoots[name] for name, over in self.over_shoots.items()}

    @property
    def positive(self) -> dict[str, Tensor]:
        """Where the shots exceed `kappa`."""
        return {name: shots > self.kappa for name, shots in self.shots.items()}

    def score(self, p: float = 2.0) -> dict[str, Tensor]:
        """`|theta - phi|^p / (shots + 1)`: low for weights that are close to `phi` and often aimed at it.

        A shot from far away counts little, because of the distance.
        """
        return {
            name: (self._weights[name].detach() - self.phi[name]).abs().float().pow(p) / (shots + 1)
            for name, shots in self.shots.items()
        }

    def remove(self) -> None:
        """Stop counting. The counts stay."""
        self._hooks.remove()

    def state_dict(self) -> dict[str, Any]:
        """The counts, from which a later test can continue."""
        return {
            kind: {name: count.clone() for name, count in counts.items()}
            for kind, counts in (("over_shoots", self.over_shoots), ("under_shoots", self.under_shoots))
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Continue from saved counts."""
        for kind, counts in (("over_shoots", self.over_shoots), ("under_shoots", self.under_shoots)):
            if missing := counts.keys() ^ state[kind].keys():
                names = ", ".join(sorted(missing))
                raise ValueError(
                    f"the state and this test have different weights: {names} is only in one of them. Use the same "
                    "include= and exclude="
                )
            for name, count in counts.items():
                count.copy_(state[kind][name])
        return self

    def _before_step(self, scale: Tensor | float) -> None:
        self._distance = {name: _learned(weight) - self.phi[name] for name, weight in self._weights.items()}

    def _after_step(self) -> None:
        for name, weight in self._weights.items():
            over, under = shots(self._distance[name], weight - self.phi[name])
            if (found := attachments.find(weight)) is not None and isinstance(found[0], Pruner):
                learning = found[0].form.learning(found[1])  # a weight that is pruned permanently does not move
                over, under = over & learning, under & learning
            self.over_shoots[name] += over
            self.under_shoots[name] += under


def _learned(weight: Tensor) -> Tensor:
    """The values that the optimizer is about to change: the hidden ones, where pruned weights have them."""
    found = attachments.find(weight)
    if found is None or not isinstance(found[0], Pruner):
        return weight.detach()
    return found[0].form.trained(found[1]).detach()


def shots(before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    """Over- and under-shoots of one step, from the signed distances `theta - phi` before and after it."""
    over = before.sign() != after.sign()
    return over, ~over & (after.abs() < before.abs())


def _hypothesis(phi: Hypothesis, name: str, weight: Tensor) -> Tensor:
    if isinstance(phi, Mapping):
        if name not in phi:
            raise ValueError(f"phi has no value for {name}; give one for each weight, or leave it out with exclude=")
        phi = phi[name]
    value = torch.as_tensor(phi, dtype=weight.dtype, device=weight.device).detach().clone()
    try:
        return value.expand(weight.shape)
    except RuntimeError:
        raise ValueError(
            f"phi has shape {tuple(value.shape)} for {name} of shape {tuple(weight.shape)}; give a number, or a tensor "
            "that can be expanded to that shape"
        ) from None
