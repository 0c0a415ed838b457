"""Passes through a model beside its training: the data is moved to it, and nothing of it is changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def moved(data: Any, device: torch.device) -> Any:
    """The data with its tensors on a device: a tensor, or tuples, lists and dictionaries of them; all else as it is."""
    if isinstance(data, Tensor):
        return data.to(device)
    if isinstance(data, Mapping):
        return {key: moved(value, device) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(moved(value, device) for value in data))
    if isinstance(data, (tuple, list)):
        return type(data)(moved(value, device) for value in data)
    return data


@contextmanager
def without_trace(model: nn.Module) -> Iterator[None]:
    """Restore the buffers of a model and torch's random state after passes through it. Gradients are not touched."""
    held = [(module._buffers, name, buffer) for module in model.modules() for name, buffer in module._buffers.items()]
    before = [None if buffer is None else buffer.detach().clone() for _, _, buffer in held]
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        with torch.no_grad():
            for (buffers, name, buffer), values in zip(held, before, strict=True):
                buffers[name] = buffer  # a forward pass may have replaced the tensor
                if buffer is not None and values is not None:
                    buffer.copy_(values)
