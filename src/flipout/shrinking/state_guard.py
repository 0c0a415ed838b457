"""A shrunk network has an optimizer whose state does not fit the original one: it is neither saved nor loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

SAVE_EXPANDED = (
    "the network is shrunk, and what is saved now would not fit the original one. Save the model, the optimizer and "
    "the pruner inside `with pruner.expanded():`; a run that loads them goes on with the shrunk network"
)

LOAD_EXPANDED = (
    "the network is shrunk, and a state of the original one does not fit it. Load the model, the optimizer and, last, "
    "the pruner inside `with pruner.expanded():`"
)


class StateGuard:
    """Refuses `state_dict()` and `load_state_dict()` of an optimizer while its network is shrunk."""

    def __init__(self, optimizer: torch.optim.Optimizer, is_shrunk: Callable[[], bool]) -> None:
        self._is_shrunk = is_shrunk
        self._handles = [
            optimizer.register_state_dict_pre_hook(self._refuse_saving),
            optimizer.register_load_state_dict_pre_hook(self._refuse_loading),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _refuse_saving(self, optimizer: torch.optim.Optimizer) -> None:
        if self._is_shrunk():
            raise RuntimeError(SAVE_EXPANDED)

    def _refuse_loading(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        if self._is_shrunk():
            raise RuntimeError(LOAD_EXPANDED)
