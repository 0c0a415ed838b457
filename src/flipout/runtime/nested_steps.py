"""Steps inside steps: an optimizer whose `step()` calls `super().step()` runs its hooks twice."""

from __future__ import annotations

import sys
from types import CodeType

import torch


def is_nested(optimizer: torch.optim.Optimizer) -> bool:
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
