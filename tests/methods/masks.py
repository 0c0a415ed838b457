"""The masks that a ranking by plain sorting gives."""

from __future__ import annotations

import torch
from torch import Tensor

import flipout


def smallest(scores: list[Tensor], keep: int) -> list[Tensor]:
    """Masks that keep the `keep` highest scores."""
    flat = torch.cat([score.flatten() for score in scores])
    mask = torch.ones_like(flat, dtype=torch.bool)
    mask[flat.sort(stable=True).indices[: len(flat) - keep]] = False
    return [part.view_as(score) for part, score in zip(mask.split([s.numel() for s in scores]), scores, strict=True)]


def equal(pruner: flipout.Pruner, masks: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(pruner.masks.values(), masks, strict=True))
