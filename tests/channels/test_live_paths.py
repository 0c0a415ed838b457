"""Effective sparsity: the weights on a live path from the input to the output."""

from __future__ import annotations

import copy
from typing import cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import flipout
from flipout.export import effective_weights
from flipout_lab.models import build
from tests.channels.path_search import live_weights, smooth_network
from tests.helpers import mlp, sgd, train


def brute_force(model: nn.Module, shape: tuple[int, ...]) -> dict[str, tuple[int, int]]:
    nonzero = {name: int(tensor.count_nonzero()) for name, tensor in model.named_parameters()}
    return {name: (nonzero[name], int(live.sum())) for name, live in live_weights(model, shape).items()}


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 1 << 30), st.sampled_from([0.0, 0.5, 0.8, 0.9, 0.95, 0.99]))
def test_against_the_network_itself(seed: int, sparsity: float) -> None:
    model = smooth_network(seed, sparsity)
    found = effective_weights(model, torch.randn(1, 3, 10, 10, dtype=torch.float64))
    assert found.layers == brute_force(model, (3, 10, 10))
    assert found.nonzero == sum(pair[0] for pair in found.layers.values())
    assert found.effective == sum(pair[1] for pair in found.layers.values())
    assert found.notes == ()


def chain(*matrices: list[list[float]]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for matrix in matrices:
        weight = torch.tensor(matrix)
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.weight.data.copy_(weight)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def test_by_hand() -> None:
    # Hidden unit 0 has no weight that enters, but a bias; unit 2 has none that leaves.
    model = chain([[0, 0], [1, 0], [0, 1]], [[1, 1, 0], [1, 0, 0]])
    found = effective_weights(model, torch.randn(1, 2))
    assert found.layers == {"0.weight": (2, 1), "2.weight": (3, 1)}
    assert (found.prunable, found.nonzero, found.effective) == (12, 5, 2)
    assert found.nominal_sparsity == pytest.approx(7 / 12)
    assert found.effective_sparsity == pytest.approx(10 / 12)


def test_a_norm_with_factor_zero_has_no_live_path() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Conv2d(2, 1, 1))
    nn.init.zeros_(model.get_parameter("1.weight")[:1])
    assert effective_weights(model, torch.randn(1, 1, 5, 5)).layers == {"0.weight": (18, 9), "2.weight": (2, 1)}


def test_a_channel_that_varies_only_at_the_borders_is_not_effective() -> None:
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 3, padding=1), nn.Conv2d(1, 1, 3, padding=1))
    nn.init.zeros_(model[0].weight)  # type: ignore[arg-type]
    assert effective_weights(model, torch.randn(1, 1, 5, 5)).effective == 0


class Auxiliary(nn.Module):
    """Has a head that is called in training only."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        return self.head(x) if self.training else x


def test_a_layer_that_is_never_called_has_no_effective_weights() -> None:
    assert effective_weights(Auxiliary(), torch.randn(1, 2)).layers == {"layer.weight": (4, 4), "head.weight": (4, 0)}


class Untraceable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y if y.sum() > 0 else -y


def test_weights_that_cannot_be_analysed_count_as_effective() -> None:
    found = effective_weights(nn.Sequential(chain([[0, 0], [0, 1]]), Untraceable()), torch.randn(1, 2))
    assert found.layers == {"0.0.weight": (1, 1), "1.layer.weight": (4, 4)}
    assert "test_live_paths.py" in found.notes[0]
    found = effective_weights(Untraceable(), torch.randn(1, 2))
    assert found.effective == found.nonzero == 4
    assert "cannot be recorded" in found.notes[0]


def test_the_model_is_not_changed() -> None:
    model = build("resnet18", (3, 32, 32), 10, 0.05)
    before = copy.deepcopy(model.state_dict())
    found = effective_weights(model, torch.randn(2, 3, 32, 32))
    assert found.effective == found.nonzero == found.prunable
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_in_the_summary() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.95, steps=40)
    train(model, optimizer, 40)
    without, summary = pruner.summary(), pruner.summary(example_input=torch.randn(1, 12))
    found = effective_weights(model, torch.randn(1, 12))
    assert without.effective is None
    assert "effective" not in str(without)
    assert summary.effective == found.effective < summary.kept
    assert [layer.effective for layer in summary.layers] == [pair[1] for pair in found.layers.values()]
    lines = str(summary).splitlines()
    assert lines[0].split()[2:5] == ["weights", "kept", "effective"]
    assert lines[-2].split() == ["total", "352", str(summary.kept), str(summary.effective), f"{pruner.sparsity:.4%}"]


def test_the_summary_says_what_could_not_be_analysed() -> None:
    model = mlp()
    pruner = flipout.Dense(model, sgd(model))
    summary = pruner.summary((torch.randn(1, 12), torch.randn(1, 12)))
    assert summary.effective == summary.kept
    assert "effective weights are all nonzero ones where nothing is known: the network cannot be recorded" in str(
        summary
    )
    assert "nothing is known" not in str(pruner.summary(torch.randn(1, 12)))


def test_arguments_by_name() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = chain([[0, 0], [0, 1]], [[1, 1]])

        def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(self.inner(x) * scale)

    model, example = Named(), {"x": torch.randn(1, 2), "scale": torch.ones(1)}
    assert effective_weights(model, example).layers == {"inner.0.weight": (1, 1), "inner.2.weight": (2, 1)}
    assert flipout.Dense(model, sgd(model)).summary(example).effective == 2


def test_in_the_summary_of_a_compiled_model() -> None:
    model = mlp()
    compiled = cast(nn.Module, torch.compile(model))
    pruner = flipout.Dense(compiled, sgd(model))
    assert pruner.summary(torch.randn(1, 12)).effective == 352
