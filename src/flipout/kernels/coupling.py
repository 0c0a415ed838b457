"""What the kernels ask a pruner. Nothing else in this folder knows of pruners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn


class PrunerLike(Protocol):
    """The part of a pruner that the kernels use."""

    model: nn.Module
    optimizer: torch.optim.Optimizer

    @property
    def masks(self) -> Mapping[str, Tensor]: ...

    @property
    def finished(self) -> bool: ...

    @property
    def regrows(self) -> bool: ...

    @property
    def reviving(self) -> bool: ...


def prunable_layers(pruner: PrunerLike) -> dict[str, nn.Module]:
    """The modules whose `weight` is pruned, by the name of that weight."""
    model = unwrapped_model(pruner.model)
    modules = dict(model.named_modules(remove_duplicate=False))
    found = {}
    for name, mask in pruner.masks.items():
        path, _, attribute = name.rpartition(".")
        module = modules.get(path)
        if attribute == "weight" and module is not None and type(mask) is Tensor:  # not sharded
            found[name] = module
    return found


def reads_pruned_gradients(pruner: PrunerLike) -> bool:
    """Whether the gradients of pruned weights are read: by hidden values, to grow weights, or by a statistic."""
    if pruner.regrows or pruner.reviving:
        return True
    statistics = [each for layer in getattr(pruner, "layers", ()) for each in layer.statistics.values()]
    return any(each.gradient == "unmasked" and not (each.only_for_prunings and pruner.finished) for each in statistics)


def is_compiled(model: nn.Module) -> bool:
    """Whether `torch.compile` has compiled a model or a module of it."""
    return any(
        type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def unwrapped_model(model: nn.Module) -> nn.Module:
    """The model inside of the wrappers of data parallelism."""
    while isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        model = model.module
    return model
