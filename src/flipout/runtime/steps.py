"""Steps of an optimizer: a call before and after each. Closures, gradient scalers, skipped and interrupted steps, and
steps inside steps are handled here, and only here."""

from __future__ import annotations

import signal
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from ..views.dtensors import local_of
from ..views.shard import view_of
from .compiler import never_traced

SAFE_WRAPPERS = (
    ("accelerate", "AcceleratedOptimizer"),
    ("lightning", "LightningOptimizer"),
    ("pytorch_lightning", "LightningOptimizer"),
    ("lightning", "_FabricOptimizer"),
    ("lightning_fabric", "_FabricOptimizer"),
)
"""Package and class of wrappers that only decide when to call `step()` of the optimizer inside. They change no weights
themselves, so hooks on the inner optimizer see everything."""


class StepHooks:
    """Call `before(scale)` when the gradients of a step are ready and `after()` when the weights are updated.

    `scale` is the factor that a `GradScaler` has multiplied the gradients with, for a fused optimizer that divides by
    it. Such an optimizer is also called for a step that it skips; then neither function is called.

    If something fails or interrupts the program between the two, `abandon()` is called in place of `after()`, before
    anybody else sees the model. The same happens before a closure is evaluated again, which is followed by another
    `before`. Signals wait until `before`, `after` and `abandon` are done.

    The hooks come before all others after a step, in the order in which they were attached: what a user's own hook
    sees is the finished step.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        before: Callable[[Tensor | float], None],
        after: Callable[[], None],
        abandon: Callable[[], None] = lambda: None,
    ) -> None:
        self._before, self._after, self._abandon = before, after, abandon
        self._optimizer = optimizer
        self._entered = False  # between `before` and `after`
        self._handles = [
            optimizer.register_step_pre_hook(self._pre_step),
            optimizer.register_step_post_hook(self._post_step),
        ]
        hooks = optimizer._optimizer_step_post_hooks
        for key, hook in list(hooks.items()):
            if not isinstance(getattr(hook, "__self__", None), StepHooks):
                hooks[key] = hooks.pop(key)  # now the last one
        self._before_guard = {name: step for name, step in vars(optimizer).items() if name == "step"}
        self._guarded = _guard(optimizer, weakref.WeakMethod(self._interrupted))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        if vars(self._optimizer).get("step") is self._guarded:  # a scheduler may have wrapped it again
            del self._optimizer.step
            vars(self._optimizer).update(self._before_guard)  # or before

    @never_traced
    @torch.no_grad()
    def _pre_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if _is_nested(optimizer):
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            if not _skips(optimizer):
                self._enter(_scale(optimizer))
            return None

        def closure_then_before() -> Any:
            self._interrupted()  # an optimizer may evaluate it several times: the model is as between steps
            loss = closure()  # which computes the gradients
            with torch.no_grad():
                self._enter(1.0)
            return loss

        return args[:1], {**kwargs, "closure": closure_then_before}

    @never_traced
    @torch.no_grad()
    def _post_step(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._entered and not _is_nested(optimizer):
            with _signals_wait():
                self._after()
                self._entered = False

    def _enter(self, scale: Tensor | float) -> None:
        with _signals_wait():
            self._entered = True
            self._before(scale)

    @torch.no_grad()
    def _interrupted(self) -> None:
        if self._entered:
            with _signals_wait():
                self._abandon()
                self._entered = False


def _guard(optimizer: torch.optim.Optimizer, interrupted: weakref.WeakMethod[Callable[[], None]]) -> Any:
    """Call `interrupted` if a step of an optimizer raises anything. The hooks of torch are not called then."""
    inner = optimizer.step

    @wraps(getattr(inner, "__func__", inner))  # learning-rate schedulers look at its attributes
    def step(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        try:
            return inner(*args, **kwargs)
        except BaseException:
            if (call := interrupted()) is not None:
                call()
            raise

    guarded = types.MethodType(step, optimizer)
    optimizer.step = guarded  # type: ignore[method-assign]
    return guarded


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Let signals wait that would interrupt Python code, such as Ctrl-C. Other threads do not get any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[Callable[..., Any], int, Any]] = []
    before: dict[int, Any] = {}
    try:
        for name in ("SIGINT", "SIGTERM", "SIGALRM"):
            number = getattr(signal, name, None)
            handler = None if number is None else signal.getsignal(number)
            if number is not None and callable(handler):
                before[number] = handler
                signal.signal(number, lambda n, frame, handler=handler: came.append((handler, n, frame)))  # type: ignore[misc]
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for handler, number, frame in came[:1]:
            handler(number, frame)


def _skips(optimizer: torch.optim.Optimizer) -> bool:
    if _initializes_state(optimizer):
        return True
    found_inf = getattr(optimizer, "found_inf", None)
    return found_inf is not None and bool(found_inf)


def _scale(optimizer: torch.optim.Optimizer) -> Tensor | float:
    scale = getattr(optimizer, "grad_scale", None)
    return 1.0 if scale is None else scale


def _is_nested(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a hook is called from a `step()` that another `step()` of the same optimizer has called.

    Torch wraps the `step` of a class in code that calls the hooks when the class is first instantiated. If both a class
    and its base are wrapped, every hook runs for each of them. Only the outer call is a step. The stack is read, which
    needs no state that an error inside a step could leave behind, and only if such a base exists.
    """
    wrapped = [cls for cls in type(optimizer).__mro__ if getattr(vars(cls).get("step"), "hooked", False)]
    if len(wrapped) < 2:
        return False
    code: CodeType = wrapped[0].step.__code__  # type: ignore[attr-defined]  # the wrapper's, the same for all classes
    frame, found = sys._getframe(), 0
    while (frame := frame.f_back) is not None:  # type: ignore[assignment]
        if frame.f_code is code and frame.f_locals["args"][0] is optimizer:
            found += 1
    return found > 1


def _initializes_state(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step only creates the optimizer's state: every learning rate is 0, and so is every gradient.

    `get_state_dict` and `set_state_dict` of `torch.distributed.checkpoint` take such a step if the optimizer has no
    state yet, which for plain SGD is always. The gradients are read only if the learning rates are 0.
    """
    rates = [group["lr"] for group in optimizer.param_groups if "lr" in group]
    if not rates or not all(map(_is_zero, rates)):
        return False
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    grads = [p.grad for p in trained if p.grad is not None]
    return bool(grads) and len(grads) == len(trained) and not any(_has_nonzero(grad) for grad in grads)


def _is_zero(rate: object) -> bool:
    if isinstance(rate, Tensor):
        return rate.device.type == "cpu" and not rate.any()  # the zero is on the CPU; reading others would wait
    return rate == 0


def _has_nonzero(grad: Tensor) -> bool:
    values = grad.coalesce().values() if grad.is_sparse else local_of(grad)
    view = view_of(grad, "a gradient")  # all ranks must come to the same answer
    return bool(view.max(values.any().to(torch.uint8)))


def unwrap_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    """Return the optimizer to attach hooks to. Raise an error if its steps cannot be hooked."""
    inner = optimizer
    while _is_safe_wrapper(inner):
        inner = inner.optimizer
    if not isinstance(inner, torch.optim.Optimizer) or not _has_step_hooks(inner):
        raise TypeError(_message(inner))
    if isinstance(inner, torch.optim.LBFGS):
        raise ValueError("LBFGS takes several inner steps per step; use an optimizer that takes one, such as SGD")
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
