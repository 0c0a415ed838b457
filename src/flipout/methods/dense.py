"""Two methods that do not prune: the reference, and one that keeps the zeros that a network already has."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import nn

from .. import criteria
from ..problems import KeepZerosWarning, warn
from ..pruner import Pruner
from ..schedules import Never
from ..weights import count_marks, count_weights
from .options import NoiseOptions
from .registry import register


@register("dense", title="Dense", about="nothing: the reference", colour="#333333")
class Dense(Pruner):
    """No pruning: the reference. Accepts `sparsity` like every method, and ignores it.

    Examples:
        >>> flipout.Dense(model, optimizer).sparsity
        0.0
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sparsity: float = 0.0,
        steps: int = 1,
        **options: Unpack[NoiseOptions],
    ) -> None:
        super().__init__(model, optimizer, criterion=criteria.magnitude, schedule=Never(steps), **options)


@register("keep-zeros", title="Keep zeros", about="nothing, but keeps the zeros of --init", colour="#666666")
class KeepZeros(Dense):
    """Keep the zeros that a network already has, to fine-tune a pruned one.

    A tensor of zeros alone was not pruned but initialized so, like `lora_B` of an adapter. Such tensors, and all
    `lora_A` and `lora_B`, stay trainable as a whole; a `KeepZerosWarning` names them. With `include=` you decide
    yourself: what it selects is kept as it is.

        >>> model[0].weight.data[:, 6:] = 0
        >>> flipout.KeepZeros(model, optimizer).nonzero  # 96 of 256 weights are zero
        160
    """

    covers_adapters = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sparsity: float = 0.0,
        steps: int = 1,
        **options: Unpack[NoiseOptions],
    ) -> None:
        self._chosen = options.get("include") is not None
        super().__init__(model, optimizer, sparsity=sparsity, steps=steps, **options)

    def start(self) -> None:
        super().start()
        zeros = [weight.local.detach() == 0 for weight in self.weights]
        left_alone = []
        for weight, zero, number in zip(self.weights, zeros, count_marks(zeros, self.weights), strict=True):
            adapter = not {"lora_A", "lora_B"}.isdisjoint(weight.name.split("."))
            if not self._chosen and weight.size and (number == weight.size or adapter):
                left_alone.append(weight.name)
                weight.mask.fill_(True)  # start() may be called again, with other weights
            else:
                weight.mask.copy_(~zero)
        count_weights(self.weights)
        if left_alone:
            warn(
                f"{', '.join(left_alone)} stays trainable as a whole: a tensor of zeros alone, or a LoRA adapter, was "
                "initialized with zeros, not pruned. To keep its zeros too, select the weights with include=; to leave "
                "it to the optimizer alone, use exclude=",
                KeepZerosWarning,
            )
