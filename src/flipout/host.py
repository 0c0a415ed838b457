"""What the objects beside a pruner see of it: its guards, its shrinker, and its saved state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .criteria import Criterion
from .events import Event
from .forms import Form
from .kernels import DenseLayers
from .problems import Need
from .runtime.tracking import Statistics
from .runtime.work import Work
from .schedules import Pruning, Schedule
from .units import DeadWeights, Units
from .weights import Weight


class Host(Protocol):
    """A pruner."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    weights: list[Weight]
    criterion: Criterion
    schedule: Schedule
    form: Form
    units: Units
    dead: DeadWeights
    statistics: Statistics
    work: Work
    events: list[Event]
    sparse_kernels: DenseLayers
    check_ranks: bool

    @property
    def step(self) -> int: ...

    @property
    def finished(self) -> bool: ...

    @property
    def permanent(self) -> bool: ...

    @property
    def attached(self) -> bool: ...

    @property
    def prunable(self) -> int: ...

    @property
    def masks(self) -> dict[str, Tensor]: ...

    @property
    def due(self) -> Pruning | None: ...

    def plan(self) -> Sequence[Pruning]: ...

    def start(self) -> None: ...

    def needs(self) -> Mapping[Need, str]: ...

    def settings(self) -> dict[str, Any]: ...

    def extra_state(self) -> dict[str, dict[str, Tensor]]: ...

    def masks_are_stale(self) -> bool: ...

    def lost_zeros(self) -> dict[str, int]: ...
