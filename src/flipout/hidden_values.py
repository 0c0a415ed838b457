"""Hidden values: what pruned weights go on learning while they may still come back.

Outside of `optimizer.step()` the model holds what the network computes with: 0 where a weight is pruned, and a kept
weight `w` shrunk smoothly by the threshold `t` of its layer to `sgn(w) * (w^4 - t^4)^(1/4)`. So a weight comes back
with a small value and goes with a small value, and a large weight stays as it is. The hidden value of a weight `s` that
is not 0 in the model follows from it: `sgn(s) * (s^4 + t^4)^(1/4)`. Only the others need memory. (Feather, Glentis
Georgoulakis et al., 2023, shrinks with a power of 3. A fourth root is two square roots.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .numerics import kept, masked, wide
from .shards.parts import Part

BELOW, ABOVE = 0.999, 1.05
"""The threshold of a layer lies just below its smallest kept weight, so that no kept weight is exactly 0. Its ceiling
lies just above its largest pruned weight."""


@dataclass(eq=False)
class HiddenValues:
    """The hidden values of one weight tensor.

    Args:
        values: for each weight that is 0 in the model its hidden value, and 0 for the others.
        threshold: the threshold `t` that kept weights are shrunk towards; a tensor without dimensions, 0 for none.
        ceiling: the largest size that the hidden value of a pruned weight can grow to before the masks are chosen
            again; a tensor without dimensions.
        awake: whether the weight itself holds the hidden values at the moment, inside of a step.
    """

    values: Tensor
    threshold: Tensor
    ceiling: Tensor
    awake: bool = False

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """What `wake` and `hide` take after the weight and the mask."""
        return self.values, self.threshold, self.ceiling


def no_hidden_values(weight: Tensor) -> HiddenValues:
    """The hidden values of a weight of which nothing is pruned."""
    threshold, ceiling = (wide(weight.detach().new_zeros(())) for _ in range(2))
    return HiddenValues(torch.zeros_like(weight, requires_grad=False), threshold, ceiling)


def wake(weight: Tensor, mask: Tensor, values: Tensor, threshold: Tensor, ceiling: Tensor) -> None:
    """Replace what the network computes with by the hidden values of all weights, in place."""
    shown = wide(weight)
    size = (shown.square().square_() + threshold**4).sqrt_().sqrt_()
    weight.copy_(torch.where((shown != 0) & kept(mask), size.copysign_(shown), wide(values)))


def hide(weight: Tensor, mask: Tensor, values: Tensor, threshold: Tensor, ceiling: Tensor) -> None:
    """Replace the hidden values by what the network computes with, in place; `values` keeps what that does not show.

    While a weight is out, the network does not react to it, so its gradient does not fall as it grows. Without a
    ceiling, many weights would pass the threshold together before the masks are chosen again, and come back far too
    large. With it, they come back with a small value, and the network reacts.
    """
    full = wide(weight)
    size = (full.square().square_() - threshold**4).clamp_min_(0).sqrt_().sqrt_()
    shown = masked(size.copysign_(full).to(weight.dtype), mask)
    limited = torch.maximum(torch.minimum(full, ceiling), -ceiling)
    values.copy_(torch.where(shown == 0, torch.where(kept(mask), full, limited), 0))
    weight.copy_(shown)


def hidden_values_of(weight: Tensor, mask: Tensor, hidden: HiddenValues) -> Tensor:
    """The hidden values of all weights, as a new tensor. The weight holds what the network computes with."""
    full = weight.clone()
    wake(full, mask, *hidden.tensors)
    return full


def set_limits(hidden: HiddenValues, weight: Tensor, mask: Tensor, *, shrink: bool, part: Part | None = None) -> None:
    """Set the threshold and the ceiling of a layer, from its hidden values in `weight` and a boolean mask.

    The threshold is 0 if the layer keeps nothing, and without shrinking. `part` is what this rank holds of a sharded
    weight: the limits are those of the whole weight.
    """
    if not weight.numel() and part is None:
        return
    sizes = wide(weight).abs()
    if weight.numel():
        smallest, largest = sizes.masked_fill(~mask, torch.inf).amin(), sizes.masked_fill_(mask, 0).amax()
    else:
        smallest, largest = sizes.new_full((), torch.inf), sizes.new_zeros(())
    if part is not None:
        negative, largest = part.max(torch.stack([-smallest, largest]))
        smallest = -negative
    if shrink:
        hidden.threshold.copy_(torch.where(smallest.isfinite(), smallest, 0) * BELOW)
    hidden.ceiling.copy_(largest * ABOVE)
