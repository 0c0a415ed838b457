"""Acceleration of networks with custom layers, hooks, tied weights or unusual inputs."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from flipout.channels.comparison import describe_difference
from flipout.export import layer_trials
from flipout.export.acceleration import CHANNELS_LAST, accelerate
from flipout.export.formats import verify_outputs
from flipout.export.model_card import card
from flipout.export.sparse_layers import SparseLayer
from flipout.kernels.direct_layers import DirectLayer
from tests.export.helpers import prune


@pytest.fixture(autouse=True)
def _sparse_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose the last form that was tried, whatever its time."""
    monkeypatch.setattr(layer_trials, "fastest_or_first", lambda times: list(times)[-1])


def fast_and_same(model: nn.Module, *inputs: Tensor) -> nn.Module:
    fast = accelerate(model, inputs, repetitions=1)
    with torch.no_grad():
        assert describe_difference(model(*inputs), fast(*inputs), 1e-4) is None
    return fast


class Clamped(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return super().forward(input).clamp(-10, 10)


class Decides(nn.Module):
    """Cannot be traced."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Any:
        return self.layers(x if x.sum() > 0 else 2 * x)


def test_layers_that_do_more_than_multiply_are_left_unchanged() -> None:
    large = 1000 * torch.randn(3, 64)
    model = prune(Decides(Clamped(64, 64), nn.ReLU(), nn.Linear(64, 8)), 0.95)
    fast = fast_and_same(model, torch.randn(2, 64))
    torch.testing.assert_close(fast(large), model(large))
    assert any(isinstance(module, Clamped) for module in fast.modules())
    hooked = prune(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8)), 0.95)
    hooked.get_submodule("0").register_forward_hook(lambda module, inputs, output: output.clamp(-10, 10))
    torch.testing.assert_close(fast_and_same(hooked, torch.randn(2, 64))(large), hooked(large))


def test_a_norm_after_a_layer_with_a_hook_is_not_folded() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    model[0].register_forward_hook(lambda module, inputs, output: output.clamp(-1, 1))
    fast = fast_and_same(model, torch.randn(2, 1, 8, 8))
    large = 100 * torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(fast(large), model(large))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(self.layer(x).relu(), self.layer.weight.t())


class Keyword(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Any:
        return self.layer(input=x).relu()


@pytest.mark.parametrize(
    "model",
    [
        nn.TransformerEncoderLayer(32, 2, 64, batch_first=True),
        nn.Sequential(nn.TransformerEncoderLayer(32, 2, 64, batch_first=True), nn.Linear(32, 8)),
        Tied(),
        Keyword(),
    ],
    ids=["transformer", "transformer inside", "tied", "keyword"],
)
def test_networks_that_read_the_weights_of_layers(model: nn.Module) -> None:
    fast_and_same(prune(model, 0.95), torch.randn(2, 5, 32))


class OnAGraph(nn.Module):
    """Takes an input that has no batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, adjacent: Tensor) -> Any:
        return self.last(adjacent @ self.first(x).relu())


def test_inputs_without_a_batch() -> None:
    model = prune(OnAGraph(), 0.9)
    fast_and_same(model, torch.randn(7, 6), torch.eye(7))
    with pytest.raises(ValueError, match="batch of 1"):
        card(model, (torch.randn(7, 6), torch.eye(7)), repetitions=1)
    with pytest.raises(ValueError, match="batch"):
        card(model, (torch.randn(7, 6), torch.randn(2, 7)), repetitions=1)


def test_an_empty_batch_and_copies() -> None:
    model = prune(nn.Sequential(nn.Conv2d(2, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 32)), 0.95)
    fast = fast_and_same(model, torch.randn(2, 2, 8, 8))
    assert any(isinstance(module, (SparseLayer, DirectLayer)) for module in fast.modules())
    assert fast(torch.randn(0, 2, 8, 8)).shape == (0, 32)
    x = torch.randn(3, 2, 8, 8)
    assert torch.equal(copy.deepcopy(fast)(x), fast(x))


def test_a_pickled_network_has_the_same_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        layer_trials,
        "fastest_or_first",
        lambda times: CHANNELS_LAST if CHANNELS_LAST in times else next(iter(times)),
    )
    fast, x = accelerate(Tied(), torch.ones(1, 32), repetitions=1), torch.randn(3, 32)
    assert torch.equal(pickle.loads(pickle.dumps(fast))(x), fast(x))


class Volumes(nn.Module):
    """Has convolutions of volumes and of images."""

    def __init__(self) -> None:
        super().__init__()
        self.volume, self.norm, self.image = nn.Conv3d(2, 8, 3, padding=1), nn.BatchNorm3d(8), nn.Conv2d(8, 4, 3)

    def forward(self, x: Tensor) -> Any:
        return self.image(self.norm(self.volume(x)).relu().mean(2))


def test_convolutions_of_volumes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = prune(Volumes(), 0.9), torch.randn(2, 2, 4, 6, 6)
    assert not isinstance(fast_and_same(model, x), Volumes)
    monkeypatch.setattr(layer_trials, "fastest_or_first", lambda times: CHANNELS_LAST)
    fast = accelerate(nn.Sequential(nn.Conv3d(2, 8, 3)), x, repetitions=1)
    assert fast.network.get_parameter("0.weight").is_contiguous(memory_format=torch.channels_last_3d)  # type: ignore[union-attr]


def test_at_least_one_repetition() -> None:
    with pytest.raises(ValueError, match="repetitions"):
        accelerate(nn.Linear(4, 4), torch.ones(1, 4), repetitions=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_card_of_a_network_that_onnxruntime_cannot_run(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()).to(dtype)
    made = card(model, torch.randn(1, 1, 6, 6).to(dtype), repetitions=1, batches=(1,))
    assert any(remark.startswith("not timed in onnxruntime: onnxruntime cannot run") for remark in made.remarks)


def test_files_are_compared_relative_to_the_size_of_outputs() -> None:
    tiny = nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        tiny.weight.mul_(1e-5)
    example = (torch.ones(1, 4),)
    with pytest.raises(ValueError, match="a file of zeros"):
        verify_outputs(tiny, lambda x: torch.zeros(len(x), 2), example, "a file of zeros")

    def masked(x: Tensor) -> Tensor:
        return x.masked_fill(x < 0, -torch.inf)

    class Masked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return masked(x)

    assert verify_outputs(Masked(), masked, example, "the same") == 0
