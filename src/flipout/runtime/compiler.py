"""When kernels are compiled, and the fallback where compilation fails."""

from __future__ import annotations

import inspect
import types
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, TypeVar

import torch

from ..problems import NotCompiledWarning

Compile = bool | Literal["auto"]
Hook = TypeVar("Hook", bound=Callable[..., Any])

HOOKS_ARE_EAGER = (
    "the hooks of a flipout pruner are not traced: compile the optimizer or the training step with fullgraph=False, "
    "or leave optimizer.step() out of the compiled function"
)

EAGER, COMPILED = 20e-9, 2e-9
"""Seconds for each weight and step, roughly, on two cores."""
SECONDS = 30.0
"""The longest time that compiling takes. The next process finds most of it in torch's disk cache."""


def decide(choice: Compile, weights: int, steps: int) -> bool:
    """Whether to compile. "auto" depends on the number of weights with work to do and the number of steps alone.

    The work of loops in C does not count.
    """
    if choice not in (True, False, "auto"):
        raise ValueError(f"compile is {choice!r}; give True, False or 'auto'")
    return bool(choice) if choice != "auto" else (EAGER - COMPILED) * weights * int(steps) > 2 * SECONDS


def never_traced(hook: Hook) -> Hook:
    """Keep a hook out of the graphs of a training loop that is compiled itself.

    A hook looks at counts and masks that change from step to step, and the kernels it calls are compiled on their own.
    """
    known = "reason" in inspect.signature(torch.compiler.disable).parameters  # since torch 2.7
    disabled: Hook = torch.compiler.disable(hook, **({"reason": HOOKS_ARE_EAGER} if known else {}))  # type: ignore[no-untyped-call]
    return disabled


@cache
def compiled(function: Callable[..., Any], *kind: Any) -> Callable[..., Any]:
    """The function under `torch.compile`, for any sizes. If that fails: one warning, and the function in eager mode.

    Torch compiles a function for at most eight kinds of arguments, so each kind (of dtypes, devices, dimensions and
    settings) has a copy of the function. All pruners of a process share them.
    """
    code, scope, name, closure = function.__code__, function.__globals__, function.__name__, function.__closure__
    own = types.FunctionType(code.replace(), scope, name, None, closure)
    fast: Callable[..., Any] = torch.compile(own, dynamic=True, fullgraph=True)

    def run(*arguments: Any) -> Any:
        if not failures:
            try:
                return fast(*arguments)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # of any kind; nothing was computed yet
                failures.append(error)
                _warn(error)
        return function(*arguments)

    return run


failures: list[Exception] = []
"""Compiler errors in this process. After the first, compilation is not tried again."""


def _warn(error: Exception) -> None:
    reason = getattr(error, "inner_exception", None) or error  # torch wraps the cause
    lines = [line for line in str(reason).splitlines() if line.strip()] or [""]
    warnings.warn(
        "torch.compile failed, so pruning runs in eager mode, which is slower "
        f"({type(reason).__name__}: {lines[0][:200]}). Install a C++ compiler (such as g++), or pass compile=False",
        NotCompiledWarning,
        stacklevel=4,
    )
