"""FlipOut as a textbook would have it: the same method, plainly, with torch's fast list operations where they fit.

The baseline of `make bench`. It keeps nine bytes a weight: a copy of the weights, a count, and a mask.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Textbook:
    """Eq. 1 to 3 around an optimizer step, and a global ranking by sorting."""

    def __init__(self, weights: Sequence[Tensor], scale: float = 1.0) -> None:
        self.weights = [weight.detach() for weight in weights]
        self.scale = scale
        self.before = [weight.clone() for weight in self.weights]
        self.flips = [torch.zeros_like(weight) for weight in self.weights]
        self.masks = [torch.ones_like(weight, dtype=torch.bool) for weight in self.weights]

    @torch.no_grad()
    def before_step(self, grads: list[Tensor]) -> None:
        """Masks the gradients, adds noise, masks the noise, and remembers the weights."""
        torch._foreach_mul_(grads, self.masks)
        norms = torch._foreach_norm(grads)
        for grad, norm, mask in zip(grads, norms, self.masks, strict=True):
            sigma = norm / grad.numel() ** 0.5
            grad.add_(torch.randn_like(grad) * (self.scale * sigma) * mask)
        torch._foreach_copy_(self.before, self.weights)

    @torch.no_grad()
    def after_step(self) -> None:
        """Counts the flips, and masks the weights."""
        for weight, before, flips in zip(self.weights, self.before, self.flips, strict=True):
            flips.add_(weight.sign() != before.sign())
        torch._foreach_mul_(self.weights, self.masks)

    def scores(self) -> Tensor:
        """All scores in one vector; what is pruned stays so."""
        scores = [
            (weight.square() / (flips + 1)).masked_fill_(~mask, -1).flatten()
            for weight, flips, mask in zip(self.weights, self.flips, self.masks, strict=True)
        ]
        return torch.cat(scores)

    @torch.no_grad()
    def prune_by_sorting(self, keep: int) -> list[Tensor]:
        """The masks that keep the `keep` highest."""
        scores = self.scores()
        kept = torch.zeros_like(scores, dtype=torch.bool)
        kept[scores.argsort()[len(scores) - keep :]] = True
        return self._split(kept)

    @torch.no_grad()
    def prune_by_kthvalue(self, keep: int) -> list[Tensor]:
        """The same by a threshold, where ties are kept or go together."""
        scores = self.scores()
        threshold = scores.kthvalue(len(scores) - keep).values
        return self._split(scores > threshold)

    def _split(self, kept: Tensor) -> list[Tensor]:
        pieces = kept.split([weight.numel() for weight in self.weights])
        return [piece.view(weight.shape) for piece, weight in zip(pieces, self.weights, strict=True)]
