"""Methods that train a latent number beside each weight: variational dropout, L0, dynamic sparse training.

In their papers the sparsity follows from a penalty. The same holds here without `sparsity=`. With it, planned events
rank the weights by their latents and keep exactly the number of weights asked for.
"""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor, nn

from .. import criteria
from ..forms import HardConcrete, Latent, Thresholds, VariationalDropoutForm
from ..forms.gates import Gates
from ..pruner import Pruner
from ..schedules import AtThreshold, Pruning
from ..weights import Weight, count_marks
from .options import Options, OwnFormOptions, ScheduleChoice, schedule_for
from .registry import register


class LatentPruner(Pruner):
    """The common part of the methods that prune by a latent number beside each weight or unit.

    Args:
        model: the network.
        optimizer: the optimizer that trains it. The latents have an optimizer of their own.
        sparsity: the share of weights that are pruned at the end; with None the penalty decides.
        steps: the number of optimizer steps of the whole training.
        fine_tune: without `sparsity`, the share of training after the one pruning, with plain weights. With `sparsity`
            the latents are dropped after the last event.
        start: the share of training at which pruning starts, with `sparsity`; 0.05 by default.
        end: the share of training at which it ends, with `sparsity`; 0.5 by default.
        schedule: when to prune, in place of `start` and `end`; a schedule, a function that makes one of
            (sparsity, steps), or "paper".
        options: see `Pruner`.
    """

    form: Latent

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        form: Latent,
        sparsity: float | None,
        steps: int,
        fine_tune: float = 0.0,
        start: float | None = None,
        end: float | None = None,
        schedule: ScheduleChoice = None,
        **options: Unpack[Options],
    ) -> None:
        if not 0 <= form.lambda_ < math.inf or not 0 < form.latent_lr < math.inf:
            raise ValueError(
                f"lambda_ is {form.lambda_}, latent_lr is {form.latent_lr}; give a lambda_ of at least 0 and a "
                "latent_lr above 0"
            )
        if not 0 <= fine_tune < 1:
            raise ValueError(f"fine_tune is {fine_tune}; give the share of training after the pruning, below 1")
        if sparsity is not None:
            when = schedule_for(schedule, sparsity, steps, start, end)
        elif (start, end, schedule) != (None, None, None):
            raise ValueError(
                "start=, end= and schedule= need sparsity=. Without it there is one pruning, and fine_tune= says when"
            )
        elif options.get("scope") == "layer" or options.get("granularity", "weight") != "weight":
            raise ValueError("scope= and granularity= need sparsity=: without it each latent decides by itself")
        else:
            when = AtThreshold(steps, 1 - fine_tune)
        super().__init__(model, optimizer, criterion=criteria.magnitude, schedule=when, form=form, **options)

    def score(self, weight: Weight) -> Tensor:
        return self.form.saliency(weight.local, weight.slots["latent"])

    def keep(self, pruning: Pruning) -> int:
        if pruning.sparsity is not None:
            return super().keep(pruning)
        marks = [self.form.survives(weight.local, weight.slots["latent"]) for weight in self.weights]
        return sum(map(max, count_marks(marks, self.weights), self.floors))


@register(
    "variational-dropout",
    title="Variational dropout",
    about="weights whose learned noise is larger than they are",
    colour="#882255",
)
class VariationalDropout(LatentPruner):
    """Sparse variational dropout (Molchanov et al., 2017): prune weights whose learned noise is larger than they are.

    Each weight gets noise `sigma * eps` with its own variance. The KL divergence from a log-uniform prior is added
    to the loss. It makes the noise grow where that does not increase the loss. A weight with
    `log sigma^2 - log theta^2 >= 3` computes as 0.

        >>> pruner = flipout.VariationalDropout(model, optimizer, steps=steps, lambda_=1 / len(x))

    `sparsity=` keeps exactly that many weights instead. For further arguments see `LatentPruner`.

    Args:
        lambda_: weight of the KL divergence in the loss: 1 divided by the number of training examples.
        latent_lr: learning rate of the variances, for Adam.
        warm_up: the shares of training at which the divergence starts, and at which it has its full weight.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sparsity: float | None = None,
        steps: int,
        lambda_: float = 1e-5,
        latent_lr: float = 1e-3,
        warm_up: tuple[float, float] = (0.025, 0.1),
        fine_tune: float = 0.0,
        **options: Unpack[OwnFormOptions],
    ) -> None:
        if not 0 <= warm_up[0] <= warm_up[1] <= 1:
            raise ValueError(f"warm_up is {warm_up}; give two shares of training, 0 <= start <= full")
        form = VariationalDropoutForm(lambda_, latent_lr, options.get("seed", 0), warm_up)
        super().__init__(model, optimizer, form=form, sparsity=sparsity, steps=steps, fine_tune=fine_tune, **options)


@register("l0", title="L0", about="weights or units whose learned gates close", colour="#44aa99")
class L0(LatentPruner):
    """L0 regularization (Louizos et al., 2018): every weight, or every unit, has a random gate that learns to close.

    The expected number of weights with an open gate is added to the loss. A gate is a hard concrete variable: it is
    exactly 0 or 1 with some probability, and still has a gradient.

        >>> pruner = flipout.L0(model, optimizer, steps=steps, lambda_=0.1 / len(x), gates="unit")

    `sparsity=` keeps exactly that many weights instead. Then the penalty only decides the order, and with
    `gates="unit"` the weights of a unit go together, up to the last unit. For further arguments see `LatentPruner`.

    Args:
        lambda_: weight of the penalty in the loss: the paper's lambda divided by the number of training examples.
        latent_lr: learning rate of the gates, for Adam.
        gates: one gate for each weight, or for each unit: an input of a linear layer, or an output channel of a
            convolution, as in the paper.
        drop: the initial probability to drop a weight, roughly.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sparsity: float | None = None,
        steps: int,
        lambda_: float = 1e-6,
        latent_lr: float = 1e-3,
        gates: Gates = "weight",
        drop: float = 0.5,
        fine_tune: float = 0.0,
        **options: Unpack[OwnFormOptions],
    ) -> None:
        if gates not in ("weight", "unit"):
            raise ValueError(f"gates is {gates!r}; give 'weight' or 'unit'")
        if not 0 < drop < 1:
            raise ValueError(f"drop is {drop}; give a probability between 0 and 1")
        form = HardConcrete(lambda_, latent_lr, options.get("seed", 0), gates, drop)
        super().__init__(model, optimizer, form=form, sparsity=sparsity, steps=steps, fine_tune=fine_tune, **options)


@register(
    "dynamic-sparse-training",
    title="Dynamic sparse training",
    about="weights below the learned threshold of their unit",
    colour="#999933",
)
class DynamicSparseTraining(LatentPruner):
    """Dynamic sparse training (Liu et al., 2020): every output unit learns the threshold below which its weights are 0.

    `lambda * sum exp(-t)`, added to the loss, pulls the thresholds up. A layer that computes with at most 1 % of its
    weights gets its thresholds reset to 0. So without `sparsity=` no layer can end below 1 %: 99.9 % is out of reach.

        >>> pruner = flipout.DynamicSparseTraining(model, optimizer, steps=steps, lambda_=5e-4)

    `sparsity=` keeps exactly that many weights instead. For further arguments see `LatentPruner`.

    Args:
        lambda_: weight of the penalty in the loss: the paper's alpha.
        latent_lr: learning rate of the thresholds, for SGD with momentum 0.9.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sparsity: float | None = None,
        steps: int,
        lambda_: float = 5e-4,
        latent_lr: float = 1e-2,
        fine_tune: float = 0.0,
        **options: Unpack[OwnFormOptions],
    ) -> None:
        form = Thresholds(lambda_, latent_lr)
        super().__init__(model, optimizer, form=form, sparsity=sparsity, steps=steps, fine_tune=fine_tune, **options)
