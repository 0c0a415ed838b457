"""Whether a shrink pays."""

from __future__ import annotations

import torch

from flipout.shrinking.decision import LEAST_SAVED, REPAID, estimate, is_repaid


def test_a_shrink_must_save_a_share_of_each_step_and_some_steps_in_all() -> None:
    assert is_repaid(0.5, 2 * REPAID)
    assert not is_repaid(0.5, 2 * REPAID - 1)
    assert not is_repaid(1 - LEAST_SAVED / 2, 10**6)
    assert not is_repaid(0.0, 0)


def test_the_estimate_counts_inputs_that_no_weight_reads() -> None:
    mask = torch.zeros(3, 4, 2, 2, dtype=torch.bool)
    mask[1, 2, 0, 1] = True
    assert estimate({"a": mask}) == 0.25
    assert estimate({"a": mask, "b": torch.ones(48, 1, dtype=torch.bool)}) == (0.25 + 1) / 2
    assert estimate({"bias": torch.ones(3, dtype=torch.bool)}) == 1.0
