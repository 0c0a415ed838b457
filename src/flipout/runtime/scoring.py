"""Calling a criterion, and checking what it returns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..criteria import Criterion
from ..weights import Weight


@contextmanager
def unchanged(criterion: Criterion, weight: Weight, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[None]:
    """Refuse a criterion that changes the weight or a statistic, which it gets as they are, in place."""
    versions = [(name, tensor, tensor._version) for name, tensor in tensors]
    yield
    if changed := [name for name, tensor, version in versions if tensor._version != version]:
        raise RuntimeError(
            f"the criterion {name_of(criterion)} changes {', '.join(dict.fromkeys(changed))} of {weight.name} in "
            "place, and with it the model or the pruner: use operations that return a new tensor, such as abs() "
            "instead of abs_(), and load the weights again"
        )


def check_scores(scores: Any, criterion: Criterion, weight: Weight) -> Tensor:
    """Refuse anything but a real tensor of the weight's shape, on the weight's device."""
    if not isinstance(scores, Tensor):
        raise TypeError(
            f"the criterion {name_of(criterion)} returns {_kind(scores)} for {weight.name}; it must return a tensor "
            "with one score for each weight"
        )
    if scores.shape != weight.local.shape:
        raise ValueError(
            f"the criterion {name_of(criterion)} returns scores of shape {tuple(scores.shape)} for {weight.name} of "
            f"shape {tuple(weight.local.shape)}; it must return one score for each weight"
        )
    if scores.is_complex():
        raise TypeError(f"the criterion {name_of(criterion)} returns complex scores; they must be real to be ranked")
    if scores.device != weight.local.device:
        raise ValueError(
            f"the criterion {name_of(criterion)} returns scores on {scores.device} for {weight.name} on "
            f"{weight.local.device}; create new tensors with device=weight.device"
        )
    return scores.detach()


def comparison_type(scores: torch.dtype, weights: set[torch.dtype]) -> torch.dtype:
    """The type that scores are ranked in without rounding: int64 for integers, float64 or float32 for floats."""
    if not scores.is_floating_point:
        return torch.int64
    return torch.float64 if torch.float64 in {scores, *weights} else torch.float32


def name_of(criterion: Criterion) -> str:
    while isinstance(criterion, partial):
        criterion = criterion.func
    return getattr(criterion, "__name__", type(criterion).__name__)


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
