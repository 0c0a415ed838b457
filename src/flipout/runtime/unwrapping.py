"""From the optimizer that a user passes to the one whose steps can be hooked."""

from __future__ import annotations

from typing import Any

import torch

from .hooks import check_optimizer

SAFE_WRAPPERS = (
    ("accelerate", "AcceleratedOptimizer"),
    ("lightning", "LightningOptimizer"),
    ("pytorch_lightning", "LightningOptimizer"),
    ("lightning", "_FabricOptimizer"),
    ("lightning_fabric", "_FabricOptimizer"),
)
"""Package and class of wrappers that only decide when to call `step()` of the optimizer inside. They change no weights
themselves, so hooks on the inner optimizer see everything."""


def unwrap_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    """Return the optimizer to attach hooks to. Raise an error if its steps cannot be hooked."""
    inner = optimizer
    while _is_safe_wrapper(inner):
        inner = inner.optimizer
    if not isinstance(inner, torch.optim.Optimizer) or not _has_step_hooks(inner):
        raise TypeError(_message(inner))
    check_optimizer(inner)
    return inner


def _is_safe_wrapper(optimizer: Any) -> bool:
    classes = {(cls.__module__.partition(".")[0], cls.__name__) for cls in type(optimizer).__mro__}
    return not classes.isdisjoint(SAFE_WRAPPERS)


def _has_step_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `step()` calls the hooks. It does not in a subclass that skips the constructor of `Optimizer`."""
    registered = all(hasattr(optimizer, f"_optimizer_step_{when}_hooks") for when in ("pre", "post"))
    return registered and getattr(type(optimizer).step, "hooked", False)


def _message(optimizer: Any) -> str:
    kind = type(optimizer).__name__
    if not any(isinstance(value, torch.optim.Optimizer) for value in getattr(optimizer, "__dict__", {}).values()):
        if isinstance(optimizer, torch.optim.Optimizer):
            return (
                f"the step hooks of {kind} do not work: its constructor must call super().__init__(params, defaults) "
                "of torch.optim.Optimizer"
            )
        return f"optimizer is a {kind}; pass a torch.optim.Optimizer"
    return (
        f"optimizer is a {kind}, a wrapper without step hooks; pass the torch.optim.Optimizer inside it. Do not do so "
        "if the wrapper changes weights after the inner step, as Lookahead does: pruned weights would not stay zero"
    )
