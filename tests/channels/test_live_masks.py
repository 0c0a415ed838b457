"""Weights on no live path, from masks alone."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from flipout.channels.copies import UnsupportedNetworkError
from flipout.channels.live_paths import LivePaths
from flipout.export import effective_weights
from flipout_lab.models import build
from tests.channels.networks import BLOCKS, UNDERSTOOD
from tests.channels.path_search import live_weights, smooth_network

WITHOUT_PRODUCTS = tuple(kind for kind in UNDERSTOOD if kind != "gated")
SEEDS, SPARSITIES = st.integers(0, 1 << 30), st.sampled_from([0.0, 0.5, 0.8, 0.9, 0.95, 0.99])


def masks_of(model: nn.Module) -> dict[str, Tensor]:
    return {f"{name}.weight": module.weight != 0 for name, module in layers_of(model).items()}


def layers_of(model: nn.Module) -> dict[str, nn.Linear | _ConvNd]:
    layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear | _ConvNd)}
    assert layers
    return layers


def complete(dead: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    assert all(mark.any() for mark in dead.values())
    return {name: dead.get(name, torch.zeros_like(mask)) for name, mask in masks.items()}


@settings(deadline=None, max_examples=12)
@given(SEEDS, SPARSITIES)
def test_against_the_network_itself(seed: int, sparsity: float) -> None:
    model = smooth_network(seed, sparsity, WITHOUT_PRODUCTS)
    masks, x = masks_of(model), torch.randn(2, 3, 10, 10, dtype=torch.float64)
    dead = complete(LivePaths(model, (x,)).dead(masks), masks)
    found = effective_weights(model, x).layers
    for name, live in live_weights(model, (3, 10, 10)).items():
        assert torch.equal(dead[name], masks[name] & ~live), name
        assert int(dead[name].sum()) == found[name][0] - found[name][1]


@settings(deadline=None, max_examples=12)
@given(SEEDS, SPARSITIES)
def test_no_effective_weight_is_dead_whatever_the_network_does(seed: int, sparsity: float) -> None:
    model = smooth_network(seed, sparsity, BLOCKS)
    masks = masks_of(model)
    dead = complete(LivePaths(model, (torch.randn(2, 3, 10, 10, dtype=torch.float64),)).dead(masks), masks)
    for name, live in live_weights(model, (3, 10, 10)).items():
        assert not (dead[name] & live).any(), name


@settings(deadline=None, max_examples=6)
@given(SEEDS, st.lists(SPARSITIES, min_size=2, max_size=3))
def test_one_trace_serves_any_masks(seed: int, sparsities: list[float]) -> None:
    example = (torch.randn(2, 3, 10, 10, dtype=torch.float64),)
    paths = LivePaths(smooth_network(seed, 0.0), example)
    for sparsity in sparsities:
        model = smooth_network(seed, sparsity)
        masks = masks_of(model)
        here, fresh = complete(paths.dead(masks), masks), complete(LivePaths(model, example).dead(masks), masks)
        assert all(torch.equal(here[name], fresh[name]) for name in masks)


def test_by_hand() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    # Hidden unit 0 has no weight that enters, but a bias; unit 2 has none that leaves.
    masks = {
        "0.weight": torch.tensor([[0, 0], [1, 0], [0, 1]]) == 1,
        "2.weight": torch.tensor([[1, 1, 0], [1, 0, 0]]) == 1,
    }
    dead = LivePaths(model, (torch.randn(1, 2),)).dead(masks)
    assert dead["0.weight"].tolist() == [[False, False], [False, False], [False, True]]
    assert dead["2.weight"].tolist() == [[True, False, False], [True, False, False]]


def test_values_do_not_count() -> None:
    """A kept weight may be zero at the moment, and so may the factor of a norm."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Conv2d(2, 1, 1))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    masks = {name: torch.ones_like(model.get_parameter(name), dtype=torch.bool) for name in ("0.weight", "2.weight")}
    assert LivePaths(model, (torch.randn(1, 1, 5, 5),)).dead(masks) == {}


def test_a_layer_with_nothing_left_takes_all_others_with_it() -> None:
    model = build("vgg19", (3, 32, 32), 10, 0.05)
    masks = {name: torch.ones_like(weight) for name, weight in masks_of(model).items()}
    lost = list(masks)[7]
    masks[lost].zero_()
    dead = LivePaths(model, (torch.randn(2, 3, 32, 32),)).dead(masks)
    assert dead.keys() == masks.keys() - {lost}
    assert all(torch.equal(mark, masks[name]) for name, mark in dead.items())


def test_weights_without_a_mask_are_live() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    mask = torch.ones(3, 2, dtype=torch.bool)
    mask[0] = False
    paths = LivePaths(model, (torch.randn(1, 2),))
    assert paths.dead({"0.weight": mask}) == {}
    assert paths.dead({"0.weight": mask, "2.weight": torch.ones(2, 3, dtype=torch.bool)}).keys() == {"2.weight"}
    assert paths.dead({"0.weight": mask}) == {}  # the other mask is forgotten


class Shared(nn.Module):
    """Calls one layer twice, another by two names, and a third one never."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice, self.last, self.never = (nn.Linear(4, 4) for _ in range(4))
        self.also_first = self.first

    def forward(self, x: Tensor) -> Tensor:
        last: Tensor = self.last(self.twice(self.twice(self.also_first(x).relu())))
        return last


def test_a_layer_that_is_called_twice_is_live_if_one_call_is_and_one_that_is_not_called_too() -> None:
    model = Shared()
    masks = {name: torch.zeros(4, 4, dtype=torch.bool) for name, _ in model.named_parameters() if "weight" in name}
    masks["never.weight"].fill_(True)
    masks["first.weight"][0] = True
    masks["last.weight"][:, 2] = True
    masks["twice.weight"][1, 0] = masks["twice.weight"][2, 1] = masks["twice.weight"][3, 0] = True
    dead = LivePaths(model, (torch.randn(1, 4),)).dead(masks)
    assert dead.keys() == {"twice.weight"}
    assert dead["twice.weight"].nonzero().tolist() == [[3, 0]]  # nothing reads it
    masks["twice.weight"].zero_()
    dead = LivePaths(model, (torch.randn(1, 4),)).dead(masks)
    assert dead.keys() == {"first.weight", "last.weight"}


def test_a_network_that_is_one_module() -> None:
    dead = LivePaths(nn.Linear(3, 2), (torch.randn(1, 3),)).dead({"weight": torch.ones(2, 3, dtype=torch.bool)})
    assert dead == {}


class Noisy(nn.Module):
    """Draws random numbers, also in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x + torch.rand(1))  # type: ignore[no-any-return]


def test_nothing_of_the_training_is_changed() -> None:
    model = Noisy()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    LivePaths(model, (torch.randn(1, 1, 5, 5),))
    torch.set_rng_state(state)
    expected = torch.rand(3)
    torch.set_rng_state(state)
    LivePaths(model, (torch.ones(1, 1, 5, 5),)).dead(masks_of(model))
    assert torch.equal(torch.rand(3), expected)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_network_that_cannot_be_recorded() -> None:
    class Branching(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return y if y.sum() > 0 else -y

    with pytest.raises(UnsupportedNetworkError, match="recorded"):
        LivePaths(Branching(2, 2), (torch.randn(1, 2),))
