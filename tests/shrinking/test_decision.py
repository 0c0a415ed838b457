"""Whether a shrink pays."""

from __future__ import annotations

import torch

from flipout.shrinking.shrinker import COST_PER_WEIGHT, FIXED_COST, LEAST_SAVED, estimate, is_repaid


def test_a_shrink_must_save_a_share_of_each_step_and_its_own_cost() -> None:
    assert is_repaid(50.0, 100.0, 10, FIXED_COST)
    assert is_repaid(50.0, 100.0, 10, (FIXED_COST + 10 * COST_PER_WEIGHT) / 50)
    assert not is_repaid(50.0, 100.0, 10, FIXED_COST / 50)
    assert not is_repaid(LEAST_SAVED * 99.0, 100.0, 10, 1e30)
    assert not is_repaid(0.0, 0.0, 10, 1e30)


def test_the_estimate_counts_inputs_that_no_weight_reads() -> None:
    mask = torch.zeros(3, 4, 2, 2, dtype=torch.bool)
    mask[1, 2, 0, 1] = True
    assert estimate({"a": mask}) == (36.0, 48.0)
    assert estimate({"a": mask, "b": torch.ones(48, 1, dtype=torch.bool)}) == (36.0, 96.0)
    assert estimate({"bias": torch.ones(3, dtype=torch.bool)}) == (0.0, 0.0)
