"""The benchmark of one-shot pruning, with a tiny network: ours does what the textbooks do, or better."""

from __future__ import annotations

import pytest
import torch

from benchmarks import one_shot


def test_against_the_textbook() -> None:
    times, figures = one_shot.measure(one_shot.Perceptron((16, 24, 8), batches=2, examples=64), 1)
    assert set(times) == {"ours_wanda", "ours_obs", "textbook_wanda", "textbook_obs"}
    assert figures["same_masks"]["wanda"] == 1
    assert figures["error"]["wanda"] == pytest.approx(1)
    assert figures["error"]["obs"] < 1.05


def test_a_decoder() -> None:
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    found = one_shot.prune_decoder(one_shot.Decoder(width=32, features=48, blocks=2, sequences=8, tokens=8))
    assert found["sparsity"] == pytest.approx(0.5)
    assert found["weights"] == 2 * (4 * 32 * 32 + 3 * 32 * 48)
