"""What the kernels ask a pruner. Nothing else in this folder knows of pruners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor, nn


class PrunerLike(Protocol):
    """What the kernels use of a pruner."""

    model: nn.Module

    @property
    def masks(self) -> Mapping[str, Tensor]: ...

    @property
    def sparsity(self) -> float: ...

    @property
    def finished(self) -> bool: ...

    @property
    def learns_pruned(self) -> bool: ...


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


def is_compiled(model: nn.Module) -> bool:
    """Whether `torch.compile` has compiled a model or a module of it."""
    return any(
        type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def unwrapped_model(model: nn.Module) -> nn.Module:
    """The model inside the wrappers of data parallelism."""
    while isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        model = model.module
    return model
