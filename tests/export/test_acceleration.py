"""Accelerated networks: the same outputs, and no form that was measured to be slower."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from flipout.export import layer_trials
from flipout.export.acceleration import CHANNELS_LAST, SPARSE_LAYERS, UNCHANGED, accelerate, fold_norms
from flipout.export.layer_trials import DENSE, MIN_SPEEDUP_RATIO, AccelerationChoices, fastest_or_first
from flipout.export.sparse_layers import SPARSE_CONVOLUTIONS, SparseLayer, sparse_forms
from flipout.export.timing import Timing
from flipout.kernels.direct_layers import DirectLayer
from flipout_lab import build
from tests.export.helpers import prune


def choices_of(fast: nn.Module) -> AccelerationChoices:
    choices = fast.choices
    assert isinstance(choices, AccelerationChoices)
    return choices


@given(st.data())
@settings(deadline=None, max_examples=40)
def test_sparse_convolutions_are_convolutions(data: st.DataObject) -> None:
    def pair(least: int, most: int) -> tuple[int, int]:
        return data.draw(st.tuples(st.integers(least, most), st.integers(least, most)))

    inputs, outputs = pair(1, 4)
    kernel, stride, padding, dilation = pair(1, 3), pair(1, 3), pair(0, 2), pair(1, 2)
    image = tuple(d * (k - 1) + 1 + e for d, k, e in zip(dilation, kernel, pair(0, 4), strict=True))
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, bias=data.draw(st.booleans()))
    prune(layer, data.draw(st.sampled_from([0, 0.5, 0.9])), data.draw(st.integers(0, 99)))
    x = torch.randn(data.draw(st.integers(1, 3)), inputs, *image)
    with torch.no_grad():
        expected = layer(x)
        found = sparse_forms(layer, x)
        assert set(found) == set(SPARSE_CONVOLUTIONS)
        for name, sparse in found.items():
            torch.testing.assert_close(sparse(x), expected, msg=name)
            larger = torch.randn(2, inputs, image[0] + 1, image[1] + 2)
            torch.testing.assert_close(sparse(larger), layer(larger), msg=f"{name}, another size")


@pytest.mark.parametrize("shape", [(5, 12), (1, 12), (2, 3, 12)], ids=str)
def test_sparse_products_are_linear_layers(shape: tuple[int, ...]) -> None:
    layer = prune(nn.Linear(12, 7), 0.8)
    x = torch.randn(shape)
    with torch.no_grad():
        (sparse,) = sparse_forms(layer, x).values()
        torch.testing.assert_close(sparse(x), layer(x))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
        nn.Conv1d(4, 4, 3),
    ],
    ids=repr,
)
def test_layers_without_a_sparse_form(layer: nn.Module) -> None:
    assert sparse_forms(layer, torch.randn(1, 4, 6, 6)) == {}


def test_folding_norms_keeps_the_outputs() -> None:
    model = prune(build("resnet18", width=0.1), 0.5)
    x = torch.randn(2, 3, 32, 32)
    folded = fold_norms(model, (x,))
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    torch.testing.assert_close(folded(x), model(x), rtol=1e-3, atol=1e-4)


class Twice(nn.Module):
    """A convolution that a norm and another operation read, and one that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = self.norm(x) + x
        out: Tensor = self.norm(self.second(x)) + self.second(x.relu())
        return out


def test_norms_that_cannot_be_folded_are_kept() -> None:
    model = prune(Twice(), 0.3)
    x = torch.randn(2, 3, 5, 5)
    torch.testing.assert_close(fold_norms(model, (x,))(x), model(x))


class Branching(nn.Module):
    """Cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x if x.sum() > 0 else -x)
        return out


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (build("resnet18", width=0.1), (2, 3, 32, 32)),
        (build("vgg19", width=0.1), (1, 3, 32, 32)),
        (build("lenet-300-100", (1, 28, 28)), (3, 1, 28, 28)),
        (Branching(), (3, 64)),
        (nn.Linear(64, 64), (3, 64)),
    ],
    ids=["resnet18", "vgg19", "lenet-300-100", "untraceable", "one layer"],
)
def test_outputs_are_equal_for_every_batch_size(model: nn.Module, shape: tuple[int, ...]) -> None:
    prune(model, 0.9)
    before = copy.deepcopy(model.state_dict())
    fast = accelerate(model, torch.randn(shape), repetitions=2)
    for batch in (1, 5):
        x = torch.randn(batch, *shape[1:])
        torch.testing.assert_close(fast(x), model(x), rtol=1e-3, atol=1e-4)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert choices_of(fast)[-1].name == "the whole network"
    assert "the whole network" in str(fast.choices)


class DiffersWhenRecorded(nn.Module):
    """Takes another branch while it is recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        return x.relu() if type(x) is Tensor else x * 0


def test_a_form_with_different_outputs_is_not_chosen() -> None:
    model, x = nn.Sequential(DiffersWhenRecorded(), nn.Linear(4, 4)), torch.randn(2, 4)
    fast = accelerate(model, torch.ones(1, 4), repetitions=1)
    torch.testing.assert_close(fast(x), model(x))


@pytest.fixture
def _sparse_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose the last form that was tried, whatever its time."""
    monkeypatch.setattr(layer_trials, "fastest_or_first", lambda times: list(times)[-1])


@pytest.mark.usefixtures("_sparse_wins")
def test_copies_and_states_of_sparse_networks() -> None:
    model, x = prune(build("lenet-5", (1, 28, 28)), 0.95), torch.randn(2, 1, 28, 28)
    fast = accelerate(model, x, repetitions=1)
    assert any(isinstance(module, (SparseLayer, DirectLayer)) for module in fast.modules())
    chosen = {choice.chosen for choice in choices_of(fast)}
    assert chosen >= {"sparse product", SPARSE_LAYERS}
    assert chosen & {"direct sparse", "sparse matrix"}
    expected = fast(x)
    other = copy.deepcopy(fast)
    with torch.no_grad():
        for tensor in other.state_dict().values():
            tensor.mul_(2)
    assert torch.equal(fast(x), expected)
    other.load_state_dict(fast.state_dict())
    assert torch.equal(other(x), expected)


@pytest.mark.usefixtures("_sparse_wins")
def test_a_loaded_state_is_used() -> None:
    x = torch.randn(2, 1, 28, 28)
    one, two = (accelerate(prune(build("lenet-5", (1, 28, 28)), 0.9, seed), x, repetitions=1) for seed in (1, 1))
    with torch.no_grad():
        for tensor in two.state_dict().values():
            tensor.neg_()
    one.load_state_dict(two.state_dict())
    two.load_state_dict(two.state_dict())
    torch.testing.assert_close(one(x), two(x))


@pytest.mark.usefixtures("_sparse_wins")
def test_training_is_refused() -> None:
    fast = accelerate(prune(nn.Sequential(nn.Linear(8, 8)), 0.9), torch.randn(2, 8), repetitions=1)
    assert not any(parameter.requires_grad for parameter in fast.parameters())
    assert not fast(torch.randn(2, 8, requires_grad=True)).requires_grad
    with pytest.raises(RuntimeError, match="inference"):
        fast.train()
    assert fast.eval() is fast


def times(**medians: float) -> dict[str, Timing]:
    return {name: Timing(median, median, median) for name, median in medians.items()}


@pytest.mark.parametrize(
    ("medians", "winner"),
    [
        ({"dense": 1.0}, "dense"),
        ({"dense": 1.0, "a": 2.0, "b": 3.0}, "dense"),
        ({"dense": 1.0, "a": MIN_SPEEDUP_RATIO + 0.01}, "dense"),
        ({"dense": 1.0, "a": MIN_SPEEDUP_RATIO - 0.01}, "a"),
        ({"dense": 1.0, "a": 0.5, "b": 0.4}, "b"),
    ],
)
def test_the_first_stays_unless_it_is_clearly_beaten(medians: dict[str, float], winner: str) -> None:
    assert fastest_or_first(times(**medians)) == winner


def test_every_choice_is_the_fastest_that_was_measured_or_dense() -> None:
    model = prune(build("vgg19", width=0.1), 0.95)
    fast = accelerate(model, torch.randn(1, 3, 32, 32), repetitions=3)
    *layers, whole = choices_of(fast)
    for choice in layers:
        assert choice.chosen in (DENSE, min(choice.tried, key=lambda name: choice.tried[name]))
        assert choice.tried[choice.chosen] <= choice.tried[DENSE]
    assert whole.tried[whole.chosen] <= whole.tried[UNCHANGED]


def test_layers_are_reported_dense_if_the_whole_is_faster_without_sparse_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        layer_trials, "fastest_or_first", lambda times: UNCHANGED if UNCHANGED in times else list(times)[-1]
    )
    model, x = prune(build("lenet-5", (1, 28, 28)), 0.95), torch.randn(2, 1, 28, 28)
    fast = accelerate(model, x, repetitions=1)
    assert {choice.chosen for choice in choices_of(fast)[:-1]} == {DENSE}
    assert any("but the whole network is fastest when unchanged" in choice.why for choice in choices_of(fast))
    assert not any(isinstance(each, SparseLayer) for each in fast.modules())


@pytest.mark.usefixtures("_sparse_wins")
def test_inputs_of_another_size_are_refused() -> None:
    fast = accelerate(prune(build("vgg19", width=0.1), 0.9), torch.randn(1, 3, 32, 32), repetitions=1)
    with pytest.raises(ValueError, match=r"\(3, 32, 32\).*\(3, 64, 64\)"):
        fast(torch.randn(1, 3, 64, 64))


def test_only_on_the_cpu() -> None:
    with pytest.raises(ValueError, match="CPU"):
        accelerate(nn.Linear(2, 2, device="meta"), torch.randn(1, 2))


def test_choices_of_a_network_without_layers() -> None:
    fast = accelerate(nn.ReLU(), torch.randn(1, 2), repetitions=1)
    assert isinstance(fast.choices, AccelerationChoices)
    assert [choice.name for choice in fast.choices] == ["the whole network"]


def test_a_network_that_is_fastest_unchanged_is_returned_without_a_wrapper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_trials, "fastest_or_first", lambda times: next(iter(times)))
    model = prune(nn.Sequential(nn.Linear(8, 8)), 0.9)
    fast = accelerate(model, torch.randn(2, 8), repetitions=1)
    assert type(fast) is nn.Sequential
    assert fast is not model
    assert isinstance(fast.choices, AccelerationChoices)
    assert choices_of(fast)[-1].chosen == UNCHANGED


def test_channels_last_has_the_same_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        layer_trials,
        "fastest_or_first",
        lambda times: CHANNELS_LAST if CHANNELS_LAST in times else DENSE,
    )
    model = prune(build("vgg19", width=0.1), 0.5)
    fast = accelerate(model, torch.randn(1, 3, 32, 32), repetitions=1)
    assert choices_of(fast)[-1].chosen == CHANNELS_LAST
    for batch in (1, 4):
        x = torch.randn(batch, 3, 32, 32)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-3, atol=1e-4)
