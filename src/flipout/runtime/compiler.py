"""When the work around a step is compiled, and what happens where that cannot be done."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import torch

from ..progress import NotCompiledWarning

Compile = bool | Literal["auto"]

EAGER, COMPILED = 20e-9, 2e-9
"""Seconds a weight and step, roughly, on two cores."""
SECONDS = 30.0
"""That compiling takes at the most; the next process finds most of it in torch's cache on disk."""


def decide(choice: Compile, weights: int, steps: int) -> bool:
    """Whether to compile; "auto" goes by the weights there is work to do for, and the steps, alone."""
    if choice not in (True, False, "auto"):
        raise ValueError(f"compile is {choice!r}; give True, False or 'auto'")
    return bool(choice) if choice != "auto" else (EAGER - COMPILED) * weights * int(steps) > 2 * SECONDS


@cache
def compiled(function: Callable[..., Any], *kind: Any) -> Callable[..., Any]:
    """The function under `torch.compile`, for any sizes; where that fails, one warning, and the function as it is.

    Torch compiles a function for eight kinds of arguments and no more, so each kind (of dtypes, devices, dimensions and
    settings) has a copy of its own. All pruners of a process share them.
    """
    own = types.FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
    fast: Callable[..., Any] = torch.compile(own, dynamic=True, fullgraph=True)

    def run(*arguments: Any) -> Any:
        if not failures:
            try:
                return fast(*arguments)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # whatever a compiler may say; nothing was computed yet
                failures.append(error)
                _warn(error)
        return function(*arguments)

    return run


failures: list[Exception] = []
"""A compiler that failed once in a process is not tried again."""


def _warn(error: Exception) -> None:
    reason = getattr(error, "inner_exception", None) or error  # of what torch wraps around it
    lines = [line for line in str(reason).splitlines() if line.strip()] or [""]
    warnings.warn(
        "the work around a step could not be compiled and runs uncompiled, which is slower "
        f"({type(reason).__name__}: {lines[0][:200]}). Install a C++ compiler (such as g++), or say compile=False",
        NotCompiledWarning,
        stacklevel=4,
    )
