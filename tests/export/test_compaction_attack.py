"""An attack on compaction with random networks. Set FLIPOUT_ATTACK_SEED to any number for other networks than usual."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flipout.export import effective_weights
from tests.attacks import seeds
from tests.channels.attack_networks import AttackArchitect
from tests.channels.networks import randomize
from tests.export.helpers import check

NETWORKS = 150
SPARSITIES = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0)


def attack(seed: int) -> None:
    """Draw a network for images and one for sequences, and check everything that compaction promises."""
    architect = AttackArchitect(seed)
    sparsity = architect.random.choice(SPARSITIES)
    torch.manual_seed(seed)
    for network, shape in ((architect.network(), (3, 10, 10)), (architect.sequence_network(), (7, 6))):
        model = randomize(network, sparsity, seed)
        check(randomize_norms(model), shape)
        found = effective_weights(model, torch.randn(2, *shape, dtype=torch.float64))
        assert all(0 <= effective <= nonzero for nonzero, effective in found.layers.values())


@torch.no_grad()
def randomize_norms(model: nn.Module) -> nn.Module:
    """Give norms random factors, some of them zero, so that they are not the identity."""
    for module in model.modules():
        if isinstance(module, nn.LayerNorm | nn.GroupNorm):
            module.weight.normal_().mul_(torch.rand_like(module.weight) > 0.3)
            module.bias.normal_()
    return model


@pytest.mark.slow
@pytest.mark.attack
@pytest.mark.parametrize("seed", seeds(NETWORKS))
def test_attack(seed: int) -> None:
    attack(seed)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_some_of_the_attack(seed: int) -> None:
    attack(seed)
