"""The printed equations of the paper, which differ from the corrected ones in known ways."""

from __future__ import annotations

import torch

from flipout.criteria import flip_saliency
from flipout_lab.paper import printed_saliency, signed_saliency


def test_eq_1_as_printed() -> None:
    weight, flips = torch.tensor([-3.0, -1.0, 1.0, 2.0]), torch.tensor([2, 0, 0, 1])
    printed = printed_saliency(weight, flips)
    assert printed.tolist()[0] == 4.5
    assert printed.tolist()[3] == 4.0
    assert bool((printed[1:3] > 1e30).all()), "a weight that never flipped is never pruned"
    assert signed_saliency(weight, flips, p=1.0).tolist() == [-1.0, -1.0, 1.0, 1.0]
    assert torch.equal(signed_saliency(weight, flips), flip_saliency(weight, flips))
