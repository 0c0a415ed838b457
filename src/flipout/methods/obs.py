"""Optimal Brain Surgeon while training."""

from __future__ import annotations

from functools import partial
from typing import Unpack

import torch
from torch import nn

from .. import criteria
from ..forms import Compensation
from ..limits import Sparsity
from ..statistics import InverseFisher
from .gradual import Gradual
from .options import OwnFormOptions
from .registry import register


@register(
    "obs",
    title="Optimal Brain Surgeon",
    about="weights whose removal costs the least if the others make up for it",
    colour="#4b0082",
)
class OptimalBrainSurgeon(Gradual):
    """Optimal Brain Surgeon (Hassibi and Stork, 1993) in the form of WoodFisher (Singh and Alistarh, 2020).

    Prune the lowest `theta^2 / (2 [F^-1]_qq)`, and change the kept weights to make up for the pruned ones. `F` is the
    empirical Fisher of the latest gradients, in blocks of weights that are neighbours in memory. It takes the memory of
    `gradients` copies of the weights.

        >>> pruner = flipout.OptimalBrainSurgeon(model, optimizer, sparsity=0.9, steps=steps)

    For further arguments see `Gradual`.

    Args:
        block: the number of weights in a block.
        gradients: the number of latest gradients over which the Fisher is averaged.
        damping: what is added to the diagonal of the Fisher, relative to the mean of its diagonal.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sparsity: Sparsity,
        steps: int,
        block: int = 50,
        gradients: int = 64,
        damping: float = 0.01,
        **options: Unpack[OwnFormOptions],
    ) -> None:
        if block < 1 or gradients < 1:
            raise ValueError(f"block is {block}, gradients is {gradients}; give integers of at least 1")
        if not damping > 0:
            raise ValueError(f"damping is {damping}; give a number above 0: without it the Fisher has no inverse")
        super().__init__(
            model,
            optimizer,
            sparsity=sparsity,
            steps=steps,
            criterion=criteria.surgeon_saliency,
            statistics={"inverse_fisher": partial(InverseFisher, gradients=gradients, block=block, damping=damping)},
            form=Compensation(),
            **options,
        )
