"""The paper: its claims checked against results, its tables and figures reproduced, and Eq. 1 as it is printed.

The corrected criterion is `flipout.criteria.flip_saliency`.
"""

from __future__ import annotations

import torch
from torch import Tensor


def printed_saliency(weight: Tensor, flips: Tensor, *, p: float = 2.0) -> Tensor:
    """Eq. 1 as printed, `theta^p / flips`. A weight that never flipped gets the largest score and is never pruned."""
    return torch.where(flips > 0, weight.pow(p) / flips, torch.finfo(weight.dtype).max)


def signed_saliency(weight: Tensor, flips: Tensor, *, p: float = 2.0) -> Tensor:
    """Eq. 1 without the absolute value, `theta^p / (flips + 1)`. For odd `p` negative weights are pruned first."""
    return weight.pow(p) / (flips + 1)
