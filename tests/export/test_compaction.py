"""Compaction: fewer channels, the same outputs."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from flipout.export.compaction import compact
from flipout_lab.models import MODELS, build
from tests.graph.networks import Architect, randomize


def numbers(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@torch.no_grad()
def assert_same(model: nn.Module, small: nn.Module, *inputs: Tensor) -> None:
    expected, actual = model(*inputs), small(*inputs)
    scale = float(expected.abs().max())
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9 * max(scale, 1e-3))


def notes_of(small: nn.Module) -> list[str]:
    notes = small.notes
    assert isinstance(notes, list)
    return notes


def check(model: nn.Module, shape: tuple[int, ...], other_size: tuple[int, ...] | None = None) -> nn.Module:
    """Check everything that holds for any network, in float64; return the compacted network."""
    model = model.double().train()
    before = copy.deepcopy(model.state_dict())
    small = compact(model, torch.randn(2, *shape, dtype=torch.float64))
    assert model.training
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in before.items())
    assert not any(note.startswith("nothing was removed") for note in notes_of(small))
    model.eval()
    for size in (shape, other_size or shape):
        assert_same(model, small, torch.randn(3, *size, dtype=torch.float64))
    assert numbers(compact(small, torch.randn(1, *shape, dtype=torch.float64))) == numbers(small)
    fixed = compact(model, torch.randn(1, *shape, dtype=torch.float64), fixed_size=True)
    assert not any(note.startswith("nothing was removed") for note in notes_of(fixed))
    assert_same(model, fixed, torch.randn(3, *shape, dtype=torch.float64))
    assert numbers(fixed) <= numbers(small)
    return small


SETTINGS = [(name, sparsity) for name in MODELS for sparsity in (0.9, 0.97, 0.999) if name != "densenet121"]


@pytest.mark.parametrize(("name", "sparsity"), [*SETTINGS, ("densenet121", 0.97)])
def test_the_networks_of_the_lab(name: str, sparsity: float) -> None:
    torch.manual_seed(0)
    model = randomize(build(name, (3, 32, 32), 10, 0.05), sparsity)
    adaptive = name in ("resnet10", "resnet18", "vgg19", "densenet121")
    small = check(model, (3, 32, 32), (3, 64, 32) if adaptive else None)
    assert notes_of(small) == []
    assert numbers(small) < numbers(model)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 1 << 30), st.sampled_from([0.0, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0]))
@example(17491, 1.0)  # all weights are zero, and only the cost of a channel decides which is kept
def test_random_networks(seed: int, sparsity: float) -> None:
    check(randomize(Architect(seed).network(), sparsity, seed), (3, 10, 10))


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(st.integers(0, 1 << 30), st.floats(0.0, 1.0))
def test_many_random_networks(seed: int, sparsity: float) -> None:
    check(randomize(Architect(seed).network(), sparsity, seed), (3, 10, 10))
