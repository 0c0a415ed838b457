"""Tell torch's exporters that the batch may have any size."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn


def dynamic_batch_axes(network: nn.Module, inputs: int) -> Any:
    """Return `dynamic_shapes` for torch's exporters: the first axis of every input is dynamic."""
    axes = tuple({0: torch.export.Dim.DYNAMIC} for _ in range(inputs))
    kinds = [parameter.kind for parameter in inspect.signature(network.forward).parameters.values()]
    is_variadic = kinds[:1] == [inspect.Parameter.VAR_POSITIONAL]  # the exporters treat `*args` as one argument
    return (axes,) if is_variadic else axes
