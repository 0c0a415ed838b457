"""Compaction: fewer channels, the same outputs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flipout_lab.models import MODELS, build
from tests.channels.networks import Architect, randomize
from tests.export.helpers import check, notes_of, numbers

SETTINGS = [(name, sparsity) for name in MODELS for sparsity in (0.9, 0.97, 0.999) if name != "densenet121"]


@pytest.mark.parametrize(("name", "sparsity"), [*SETTINGS, ("densenet121", 0.97)])
def test_the_networks_of_the_lab(name: str, sparsity: float) -> None:
    torch.manual_seed(0)
    model = randomize(build(name, (3, 32, 32), 10, 0.05), sparsity)
    adaptive = name in ("resnet10", "resnet18", "vgg19", "densenet121")
    small = check(model, (3, 32, 32), (3, 64, 32) if adaptive else None)
    assert notes_of(small) == []
    assert numbers(small) < numbers(model)


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 1 << 30), st.sampled_from([0.0, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0]))
@example(17491, 1.0)  # all weights are zero, and only the cost of a channel decides which is kept
def test_random_networks(seed: int, sparsity: float) -> None:
    check(randomize(Architect(seed).network(), sparsity, seed), (3, 10, 10))


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(st.integers(0, 1 << 30), st.floats(0.0, 1.0))
def test_many_random_networks(seed: int, sparsity: float) -> None:
    check(randomize(Architect(seed).network(), sparsity, seed), (3, 10, 10))
