"""Attach reports to a network as attributes."""

from __future__ import annotations

from typing import Any

from torch import fx, nn
from torch.fx.graph_module import _USER_PRESERVED_ATTRIBUTES_KEY as PRESERVED


def attach_attributes(model: nn.Module, **attributes: Any) -> nn.Module:
    """Set attributes on a network, except those whose name it uses already; return the network."""
    taken = {*model._modules, *model._parameters, *model._buffers, *dir(type(model))}
    attributes = {name: value for name, value in attributes.items() if name not in taken}
    if isinstance(model, fx.GraphModule):
        model.meta[PRESERVED] = {**model.meta.get(PRESERVED, {}), **attributes}  # or deepcopy would lose them
    for name, value in attributes.items():
        setattr(model, name, value)
    return model
