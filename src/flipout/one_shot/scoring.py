"""What weights are worth without a training run: a criterion, and the statistics that calibration gives it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from .. import criteria
from ..criteria import Criterion
from ..numerics import wide
from ..runtime.batches import Batches, LossFunction, read_loss
from ..runtime.scoring import check_scores
from ..runtime.tracking import requested
from ..statistics import CALIBRATED, STATISTICS, Place
from ..statistics.values import fan_in_of
from ..weights import Weight
from .calibration import calibrating
from .layers import Layer

MethodName = Literal["magnitude", "wanda", "obs", "fisher"]
CRITERIA: dict[str, Criterion] = {
    "magnitude": criteria.magnitude,
    "wanda": criteria.wanda,
    "fisher": criteria.fisher_saliency,
}
VALUES = ("weight", "fan_in", "uniform")
"""Statistics that depend on the weights alone."""
OF_THE_LOSS = ("grad", "fisher")
"""Statistics of the gradients of a loss."""


class Scoring:
    """The criterion of a method.

    Args:
        method: the name of a method other than "obs", or a criterion.
        loss_fn: the loss, if the criterion asks for gradients.
        seed: the seed of the statistic `uniform`.
    """

    def __init__(self, method: str | Criterion, loss_fn: LossFunction | None, seed: int) -> None:
        if isinstance(method, str) and method not in CRITERIA:
            raise ValueError(
                f"method is {method!r}; give 'obs', {', '.join(map(repr, CRITERIA))}, or a criterion: a function of "
                f"{', '.join((*VALUES, *OF_THE_LOSS, *CALIBRATED))}"
            )
        self.criterion = CRITERIA[method] if isinstance(method, str) else method
        self.asked = requested(self.criterion, dict.fromkeys((*VALUES, *OF_THE_LOSS, *CALIBRATED)))
        self.loss_fn, self.seed, self.step = loss_fn, seed, 0
        self.gradients: dict[str, dict[Weight, Tensor]] = {}
        if self.needs_loss and loss_fn is None:
            what = f"method={method!r}" if isinstance(method, str) else "the criterion"
            raise ValueError(f"{what} needs the gradients of a loss: give loss_fn=, and batches of (inputs, target)")

    @property
    def needs_inputs(self) -> bool:
        return any(name in CALIBRATED for name in self.asked)

    @property
    def needs_loss(self) -> bool:
        return any(name in OF_THE_LOSS for name in self.asked)

    def start(self, batches: Batches, weights: Sequence[Weight]) -> None:
        """Compute the gradients of the loss, once in each round, if the criterion asks for them."""
        self.step += 1
        if self.needs_loss and self.loss_fn is not None:
            self.gradients = mean_gradients(batches, weights, self.loss_fn)

    def scores(self, layer: Layer, diagonal: Tensor | None) -> Tensor:
        """The scores of a weight. `diagonal` is that of the Hessian, for a criterion that asks for the inputs."""
        weight, values = layer.weight, dict[str, Tensor]()
        local = weight.local.detach()
        place = Place(weight.number, self.seed, fan_in_of(weight.module, weight.parameter), weight.view.positions)
        for name in self.asked:
            if name in OF_THE_LOSS:
                values[name] = self.gradients[name][weight]
            elif name in CALIBRATED:
                assert diagonal is not None
                values[name] = layer.spread((diagonal / 2).sqrt() if name == "input_norm" else diagonal)
            else:
                values[name] = STATISTICS[name](local, place).value(local, self.step)
        return check_scores(self.criterion(**values), self.criterion, weight)


def mean_gradients(
    batches: Batches, weights: Sequence[Weight], loss_fn: LossFunction
) -> dict[str, dict[Weight, Tensor]]:
    """The mean of the gradients of the loss over the batches, and of their squares."""
    means, squares = ({w: torch.zeros_like(wide(w.parameter.detach())) for w in weights} for _ in range(2))
    parameters = [weight.parameter for weight in weights]
    with calibrating(batches.network, norms=False):
        for number, call in enumerate(batches):
            with torch.enable_grad():
                loss = read_loss(loss_fn, batches.run(number, call), call)
                grads = torch.autograd.grad(loss, parameters, allow_unused=True)
            for weight, grad in zip(weights, grads, strict=True):
                if grad is not None:
                    means[weight].add_(wide(grad), alpha=1 / batches.number)
                    squares[weight].addcmul_(wide(grad), wide(grad), value=1 / batches.number)
    return {"grad": means, "fisher": squares}


ScoreOf = Callable[[Weight], Tensor]
