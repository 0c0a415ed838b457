"""Comparing the weights of a model with the masks of its pruner."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from weakref import ref

import torch
from torch import Tensor, nn

from ..events import Progress
from ..host import Host
from ..modules import named_tensors
from ..problems import LostZerosWarning, warn
from ..views.dtensors import local_of
from ..views.matching import common_elements
from .base import Guard
from .ownership import is_checked

SHOWN = 10
"""How many weights a message names."""

BETWEEN_STEPS = (
    " Now they are zeroed again, as after every optimizer step, but what changes them between steps can also change "
    "them after the last step: check at the end with pruner.check()"
)


@torch.no_grad()
def count_lost_zeros(masks: Mapping[str, Tensor], model: nn.Module) -> dict[str, int]:
    """For each weight tensor that has any: the number of weights that are pruned, but not zero.

    Of a tensor that the model does not have, or has in another shape, all pruned weights count. Of sharded weights, the
    shards of this rank count.
    """
    tensors = named_tensors(model)
    counts: list[Tensor] = []
    for name, mask in masks.items():
        tensor = tensors.get(name)
        if tensor is None or tensor.shape != mask.shape:
            counts.append(torch.count_nonzero(~local_of(mask)).cpu())
        else:
            tensor, mask = common_elements(tensor, mask)
            counts.append(torch.count_nonzero((tensor != 0) > mask.to(tensor.device)))
    device = counts[0].device
    lost = torch.stack([count.to(device) for count in counts]).tolist()  # waits for the device once
    return {name: count for name, count in zip(masks, lost, strict=True) if count}


def complaint(masks: Mapping[str, Tensor], lost: Mapping[str, int]) -> str:
    """The message for lost zeros: where, how many, the likely causes, and what to do."""
    masks = {name: local_of(mask) for name, mask in masks.items()}
    weights = sum(mask.numel() for mask in masks.values())
    pruned = {name: mask.numel() - int(torch.count_nonzero(mask)) for name, mask in masks.items()}
    total, missing = sum(pruned.values()), sum(min(count, pruned[name]) for name, count in lost.items())
    named = [f"{name} ({count:,} of {pruned[name]:,})" for name, count in lost.items()]
    more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    return (
        f"pruned weights of the model are not zero: {', '.join(named[:SHOWN])}{more}. The masks prune "
        f"{total / weights:.2%} of the weights, but the model has only {(total - missing) / weights:.2%} of them as "
        "zeros. Something other than the optimizer's step changed the weights: weight averaging, a second optimizer, a "
        "wrapper around the optimizer, one with separate weights for evaluation, or a checkpoint that was loaded. Call "
        "pruner.apply_to(model) to zero them. If you loaded a checkpoint of another step, load the pruner's state of "
        "that step with pruner.load_state_dict()"
    )


class Zeros(Guard):
    """Finds pruned weights that are not zero: something other than the optimizer's step has changed them."""

    def __init__(self) -> None:
        self._warned = False

    def before_step(self, pruner: Host) -> None:
        if is_checked(pruner) and not self._warned and (lost := pruner.lost_zeros()):
            self._warned = True
            warn_of_lost_zeros(pruner.masks, lost, BETWEEN_STEPS)

    def saving(self, pruner: Host) -> None:
        if pruner.step:  # before that, weights may have been loaded whose state is loaded next
            warn_of_lost_zeros(pruner.masks, pruner.lost_zeros())

    def loaded(self, pruner: Host) -> None:
        self._warned = False

    def removed(self, pruner: Host) -> None:
        warn_of_lost_zeros(pruner.masks, pruner.lost_zeros())


def warn_of_lost_zeros(masks: Mapping[str, Tensor], lost: Mapping[str, int], note: str = "") -> None:
    if lost:
        warn(f"{complaint(masks, lost)}.{note}".rstrip("."), LostZerosWarning)


def warn_at_the_end(progress: Progress, reference: ref[Host]) -> None:
    """Warn of an unfinished schedule and of lost zeros when a pruner is garbage-collected, or the program ends.

    At the end of the program the pruner still exists, so that its weights can be compared with its masks. A program
    that has ended with an error has said so already.
    """
    pruner = reference()
    if pruner is not None and hasattr(sys, "last_type"):
        return
    progress.warn()
    if pruner is not None:
        warn_of_lost_zeros(pruner.masks, pruner.lost_zeros())
