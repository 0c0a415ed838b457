"""Random networks: what nothing reads is removed in place, and the outputs stay the same."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from flipout.channels.graph import ChannelGraph
from flipout.channels.trial import Trial, unread
from tests.attacks import seeds
from tests.channels.attack_networks import AttackArchitect
from tests.channels.networks import Architect, randomize

FOUND = (363323, 169060)
"""Seeds of the attack that have found something: channels of a norm with groups were moved from one to another; a
number that was a size by chance changed with the sizes of another module."""


@torch.no_grad()
def check(model: nn.Module, shape: tuple[int, ...], seed: int) -> None:
    """Let nothing read half of the channels that can go by themselves, and remove them."""
    model = model.double().eval()
    example = torch.randn(2, *shape, dtype=torch.float64)
    graph = ChannelGraph.of(model, (example,), residual=True)
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand(graph.size, generator=generator) < 0.5
    chosen[0] = False
    for name, parameter in model.named_parameters():
        zeroed = chosen & (graph.normed | graph.read.get(name, graph.normed))
        for dim, sets in enumerate(graph.tensors.get(name, ())):
            parameter.index_fill_(dim, zeroed[sets].nonzero().flatten(), 0)
    removed = unread(model, graph, (example,), {})
    trial = Trial(model, graph, (example,))
    best = trial.largest(removed)
    assert torch.equal(best.sets, removed), trial.problems
    smaller = trial.smaller(best)
    assert smaller is not None
    assert {name for name, _ in smaller.named_parameters()} == {name for name, _ in model.named_parameters()}
    for batch in (1, 3):
        x = torch.randn(batch, *shape, dtype=torch.float64)
        torch.testing.assert_close(smaller(x), model(x), rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 1 << 30), st.sampled_from([0.0, 0.5, 0.9]))
def test_random_networks(seed: int, sparsity: float) -> None:
    check(randomize(Architect(seed).network(), sparsity, seed), (3, 10, 10), seed)


@pytest.mark.parametrize("seed", FOUND)
def test_what_an_attack_has_found(seed: int) -> None:
    attack(seed)


@pytest.mark.slow
@pytest.mark.attack
@pytest.mark.parametrize("seed", seeds(100))
def test_attack(seed: int) -> None:
    attack(seed)


def attack(seed: int) -> None:
    architect = AttackArchitect(seed)
    check(randomize(architect.network(), 0.5, seed), (3, 10, 10), seed)
    check(randomize(architect.sequence_network(), 0.5, seed), (7, 6), seed)
