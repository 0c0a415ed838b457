"""Copies of a pruner: together with its model and its optimizer, or not at all."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeVar

from .runtime import attachments
from .runtime.runner import Runner

if TYPE_CHECKING:
    from .pruner import Pruner

ATTACHMENT = ("_hooks", "_state_guard", "_gradient_masks", "_farewell")
"""Attributes that belong to the optimizer of the original; `Pruner._attach` sets them."""

REFUSAL = (
    "a pruner cannot be pickled or copied by itself, because its hooks belong to its optimizer and its masks to the "
    "parameters of its model. Save pruner.state_dict(), and load it into a new pruner of the copied model and "
    "optimizer. Or copy all three together: copy.deepcopy((model, optimizer, pruner)). If the pruner is an attribute "
    "of a module that is copied, keep it elsewhere"
)

PrunerType = TypeVar("PrunerType", bound="Pruner")


def copy_together(pruner: PrunerType, memo: dict[int, Any]) -> PrunerType:
    """Copy a pruner for the copies of its model and its optimizer that `copy.deepcopy` has just made."""
    if id(pruner.model) not in memo or id(pruner.optimizer) not in memo:
        raise TypeError(REFUSAL)
    new = type(pruner).__new__(type(pruner))
    memo[id(pruner)] = new
    for name, value in vars(pruner).items():
        if name not in (*ATTACHMENT, "runner"):
            vars(new)[name] = copy.deepcopy(value, memo)
    new._contract()  # `expanded()` of the original does not end for the copy
    new.runner = Runner(pruner.runner.compiled)  # it caches views of the original's tensors
    if attachments.contains(pruner):
        new._attach()
    return new
