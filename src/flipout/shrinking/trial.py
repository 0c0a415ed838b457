"""A trial on a copy: the smaller network must run, and compute the same, before the network itself is touched."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..graph.equivalence import EquivalenceCheck
from ..graph.model_copies import evaluation_copy
from .network_cut import Indices, NetworkCut


@torch.no_grad()
def try_cut(model: nn.Module, indices: Mapping[str, Indices], example: tuple[Tensor, ...]) -> None:
    """Raise an `UnsupportedNetworkError` if the network would compute something else without some channels."""
    copy = evaluation_copy(model)
    check = EquivalenceCheck(copy, example)
    NetworkCut(copy, None, ()).apply(indices)
    check.verify(copy)
