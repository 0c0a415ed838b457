"""Hoyer-Square: a penalty that pulls small weights to zero, one pruning, and fine-tuning."""

from __future__ import annotations

import math
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from .. import criteria
from ..pruner import Pruner
from ..schedules import AtThreshold, OneShot, Pruning
from ..views import View
from ..views.dtensors import is_sharded
from ..views.shard import DifferentiableSum
from ..weights import count_marks
from .options import Options
from .registry import LoopNeeds, register


@register(
    "hoyer-square",
    title="Hoyer-Square",
    about="small weights after training with a penalty, followed by fine-tuning",
    colour="#cc79a7",
    needs=LoopNeeds(penalty=True, further_epochs=150 / 350),
)
class HoyerSquare(Pruner):
    """Hoyer-Square (Yang et al., 2020): train with a penalty, prune the weights below a threshold, and fine-tune.

    Add `pruner.penalty()` to the loss. The sparsity then depends on `lambda_`. If `sparsity` is given, the smallest
    weights are pruned to exactly that count instead.

        >>> pruner = flipout.HoyerSquare(model, optimizer, steps=steps, lambda_=1e-4)
        >>> loss = loss_fn(model(x), y) + pruner.penalty()

    Args:
        model: the network.
        optimizer: the optimizer that trains it.
        sparsity: the share of weights to prune; None prunes by the threshold.
        steps: the number of optimizer steps of the whole training.
        lambda_: weight of the penalty in the loss.
        threshold: weights smaller than this are pruned if no sparsity is given.
        fine_tune: the share of training after the pruning, without the penalty.
        options: see `Pruner`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sparsity: float | None = None,
        steps: int,
        lambda_: float = 1e-4,
        threshold: float = 1e-4,
        fine_tune: float = 0.3,
        **options: Unpack[Options],
    ) -> None:
        if not 0 <= lambda_ < math.inf or not 0 <= threshold < math.inf:
            raise ValueError(f"lambda_ is {lambda_}, threshold is {threshold}; give numbers of at least 0")
        if not 0 <= fine_tune <= 1:
            raise ValueError(f"fine_tune is {fine_tune}; give the share of training after the pruning")
        if sparsity is None and options.get("scope") == "layer":
            raise ValueError("scope='layer' needs sparsity=: without it, one threshold holds for all layers")
        self.lambda_, self.threshold = lambda_, threshold
        at = 1 - fine_tune
        super().__init__(
            model,
            optimizer,
            criterion=criteria.magnitude,
            schedule=AtThreshold(steps, at) if sparsity is None else OneShot(sparsity, steps, at),
            **options,
        )

    def penalty(self) -> Tensor:
        """`lambda * sum_l (sum |theta_l|)^2 / sum theta_l^2` until the pruning, and 0 afterwards."""
        device = self.weights[0].local.device
        if self.finished:
            return self.weights[0].local.new_zeros(())
        penalties = [hoyer_square(_differentiable(weight.parameter), weight.view) for weight in self.weights]
        return self.lambda_ * torch.stack([penalty.to(device) for penalty in penalties]).sum()

    def keep(self, pruning: Pruning) -> int:
        if pruning.sparsity is not None:
            return super().keep(pruning)
        above = count_marks([weight.local.abs() >= self.threshold for weight in self.weights], self.weights)
        return sum(map(max, above, self.floors))

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"lambda_": self.lambda_, "threshold": self.threshold}


def hoyer_square(weight: Tensor, view: View | None = None) -> Tensor:
    """`(sum |theta|)^2 / sum theta^2`: 1 for a single nonzero weight, `d` for `d` weights of the same magnitude.

    With a view, the sums are those of all ranks that hold elements of the weight.
    """
    weight = weight.float() if weight.dtype != torch.float64 else weight
    squares, magnitudes = weight.square().sum(), weight.abs().sum()
    if view is not None and view.key is not None:
        squares, magnitudes = (DifferentiableSum.apply(each, view) for each in (squares, magnitudes))  # type: ignore[no-untyped-call]
    return magnitudes.square() / squares.clamp_min(torch.finfo(squares.dtype).tiny)  # 0 for a dead layer


def _differentiable(parameter: Any) -> Tensor:
    """The elements of a parameter that this rank holds; gradients of them reach it."""
    local: Tensor = parameter.to_local() if is_sharded(parameter) else parameter
    return local
