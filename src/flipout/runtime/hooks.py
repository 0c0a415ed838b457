"""Hooks around each optimizer step. Closures, gradient scalers and skipped steps are handled here, and only here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .compiler import never_traced
from .nested_steps import is_nested
from .state_initialization import initializes_state


def check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer that has no single moment between its gradients and its update."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer is a {type(optimizer).__name__}; pass a torch.optim.Optimizer")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("LBFGS takes several inner steps per step; use an optimizer that takes one, such as SGD")


class StepHooks:
    """Call `before(scale)` when the gradients of a step are ready and `after()` when the weights are updated.

    `scale` is the factor that a `GradScaler` has multiplied the gradients with, for a fused optimizer that divides by
    it. Such an optimizer is also called for a step that it skips; then neither function is called.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        before: Callable[[Tensor | float], None],
        after: Callable[[], None],
    ) -> None:
        self._before, self._after = before, after
        self._handles = [
            optimizer.register_step_pre_hook(self._pre_step),
            optimizer.register_step_post_hook(self._post_step),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    @never_traced
    @torch.no_grad()
    def _pre_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if is_nested(optimizer):
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            if not _skips(optimizer):
                self._before(_scale(optimizer))
            return None

        def closure_then_before() -> Any:
            loss = closure()  # which computes the gradients
            with torch.no_grad():
                self._before(1.0)
            return loss

        return args[:1], {**kwargs, "closure": closure_then_before}

    @never_traced
    @torch.no_grad()
    def _post_step(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not is_nested(optimizer) and not _skips(optimizer):
            self._after()


def _skips(optimizer: torch.optim.Optimizer) -> bool:
    if initializes_state(optimizer):
        return True
    found_inf = getattr(optimizer, "found_inf", None)
    return found_inf is not None and bool(found_inf)


def _scale(optimizer: torch.optim.Optimizer) -> Tensor | float:
    scale = getattr(optimizer, "grad_scale", None)
    return 1.0 if scale is None else scale
