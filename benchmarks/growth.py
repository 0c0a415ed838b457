"""How the cost of a weight grows with their number: layers of a million weights, one, ten and a hundred of them."""

from __future__ import annotations

import torch

from .step import Ours
from .timing import Times, interleaved

MILLIONS = (1, 10, 100)


def measure(repetitions: int) -> dict[str, Times]:
    """Times of the work around a step, and of a pruning, for each number of weights."""
    step, renew, select, undo = {}, {}, {}, {}
    for millions in MILLIONS:
        ours = Ours([torch.randn(1000, 1000) for _ in range(millions)])
        name = f"{millions}M"
        step[name], renew[name], select[name], undo[name] = ours.around, ours.renew, ours.prune, ours.undo
    return {
        "step": interleaved(step, repetitions, undo=renew),
        "select": interleaved(select, repetitions, undo=undo),
    }
