"""Compaction, case by case: what is removed, what is kept, and what the result supports."""

from __future__ import annotations

import copy
import io
import warnings
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from flipout.export import load_compacted, save_compacted
from flipout.export.compaction import CompactionReport, compact
from flipout_lab.models import build
from tests.channels.networks import randomize
from tests.export.helpers import assert_same, check, notes_of, numbers, outputs, zero


def test_one_constant_that_meets_zero_padding_is_kept() -> None:
    model = randomize(
        nn.Sequential(nn.Conv2d(2, 6, 3), nn.Sigmoid(), nn.Conv2d(6, 3, 3, padding=1), nn.Conv2d(3, 1, 1)), 0
    )
    zero(model[0], [0, 1, 2, 3])  # type: ignore[index]
    small = check(model, (2, 8, 8))
    assert outputs(small) == [3, 3, 1]


@pytest.mark.parametrize("after", [{"padding": 0}, {"padding": 1, "padding_mode": "circular"}], ids=str)
def test_a_constant_without_zero_padding_is_folded_into_the_bias(after: dict[str, object]) -> None:
    model = randomize(nn.Sequential(nn.Conv2d(2, 6, 3), nn.Sigmoid(), nn.Conv2d(6, 3, 3, bias=False, **after)), 0)  # type: ignore[arg-type]
    zero(model[0], [0, 1, 2, 3])  # type: ignore[index]
    small = check(model, (2, 8, 8))
    assert outputs(small) == [2, 3]
    assert small.get_submodule("2").bias is not None


def test_a_channel_of_zeros_is_removed() -> None:
    model = randomize(nn.Sequential(nn.Conv2d(2, 6, 3, bias=False), nn.ReLU(), nn.Conv2d(6, 3, 3, padding=1)), 0)
    zero(model[0], [0, 5])  # type: ignore[index]
    assert outputs(check(model, (2, 8, 8))) == [4, 3]


def test_a_channel_that_is_never_read_is_removed_with_everything_before_it() -> None:
    model = randomize(
        nn.Sequential(
            nn.Conv2d(2, 5, 3),
            nn.BatchNorm2d(5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(5, 4, 3),
            nn.Flatten(),
            nn.Linear(4, 3),
        ),
        0,
    )
    zero(model[4], [], [1])  # type: ignore[index]
    zero(model[6], [], [0, 2])  # type: ignore[index]
    assert outputs(check(model, (2, 8, 8))) == [4, 2, 3]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv, self.norm = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.BatchNorm2d(8),
        )
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        x = (self.norm(self.conv(x)) + x).relu()
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


def test_a_branch_keeps_only_the_channels_that_vary() -> None:
    model = randomize(Block(), 0)
    zero(model.conv, [0, 1, 2, 3, 4])  # type: ignore[arg-type]
    assert outputs(check(model, (3, 6, 6), (3, 9, 7))) == [8, 3, 2]


def test_a_dead_branch_is_removed() -> None:
    model = randomize(Block(), 0)
    zero(model.conv, list(range(8)))  # type: ignore[arg-type]
    small = check(model, (3, 6, 6), (3, 9, 7))
    assert outputs(small) == [8, 1, 2]  # a tensor cannot be without channels
    assert numbers(small) < numbers(model)


@pytest.mark.parametrize("name", ["mlp", "conv-6", "resnet18"])
def test_a_network_without_any_weight_still_runs(name: str) -> None:
    model = randomize(build(name, (3, 32, 32), 10, 0.05), 1.0)
    small = check(model, (3, 32, 32))
    assert max(outputs(small)) == 10
    assert small(torch.randn(5, 3, 32, 32).double()).shape == (5, 10)


def test_the_last_group_of_a_convolution_loses_single_channels(tmp_path: Path) -> None:
    """As long as there are groups, they go as a whole."""

    def build_grouped() -> nn.Sequential:
        torch.manual_seed(0)
        grouped = nn.Conv2d(12, 4, 3, groups=4)
        return nn.Sequential(nn.Conv2d(3, 12, 1, bias=False), grouped, nn.ReLU(), nn.Flatten(), nn.Linear(36, 4))

    model = build_grouped()
    zero(model[4], [], list(range(9, 36)))  # nothing reads three of the groups
    zero(model[0], [1])
    small = check(model, (3, 5, 5))
    assert outputs(small) == [2, 1, 4]
    save_compacted(small, tmp_path / "small.safetensors")
    again = load_compacted(tmp_path / "small.safetensors", lambda: build_grouped().double())
    x = torch.randn(2, 3, 5, 5, dtype=torch.float64)
    torch.testing.assert_close(again.eval()(x), small.eval()(x))


class Functional(nn.Module):
    """A network that calls functions instead of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.third, self.head = nn.Linear(8 * 9, 10), nn.Linear(10, 3)

    def forward(self, x: Tensor, scale: float | None = None) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.first(x), inplace=True), 2)
        x = functional.leaky_relu(self.second(x)) * 0.5 + 1
        if scale is not None:
            x = x * scale
        x = functional.dropout(torch.flatten(x, 1), training=self.training)
        return functional.log_softmax(self.head(torch.tanh(self.third(x))), dim=1)


def test_functions_and_omitted_arguments() -> None:
    model = randomize(Functional(), 0)
    zero(model.first, [1, 2])  # type: ignore[arg-type]
    with torch.no_grad():
        model.get_parameter("first.bias")[1:3] = torch.tensor([-1.0, 1.0])
    zero(model.third, [], list(range(9 * 5, 9 * 8)))  # type: ignore[arg-type]
    zero(model.head, [], [0, 1, 2])  # type: ignore[arg-type]
    small = check(model, (1, 8, 8))
    assert outputs(small) == [4, 4, 7, 3]  # one constant meets zero padding and is kept
    (note,) = notes_of(small)
    assert "without scale" in note


class Sequence(nn.Module):
    """Features last, as in a transformer's feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 20), nn.Linear(20, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))  # type: ignore[no-any-return]


def test_features_on_the_last_axis() -> None:
    model = randomize(Sequence(), 0)
    zero(model.up, [0, 1, 2, 3, 4])  # type: ignore[arg-type]
    zero(model.down, [2, 3], [5, 6])  # type: ignore[arg-type]
    small = check(model, (7, 6), (4, 6))
    assert outputs(small) == [13, 6]
    zero(model.down, [0, 1, 2, 3])  # type: ignore[arg-type]
    assert outputs(check(model, (7, 6), (4, 6))) == [13, 2]


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        return self.last(self.again(self.again(x).relu()).relu())  # type: ignore[no-any-return]


def test_a_layer_that_is_called_twice_loses_what_neither_call_needs() -> None:
    model = randomize(Twice(), 0)
    zero(model.again, [0, 1], [0, 1])  # type: ignore[arg-type]
    assert outputs(check(model, (4,))) == [6, 6, 2]
    zero(model.last, [], [0, 1])  # type: ignore[arg-type]
    small = check(model, (4,))
    assert outputs(small) == [4, 4, 2]
    assert type(small) is Twice


def test_tied_weights_stay_tied() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    model[2].weight = model[0].weight
    small = check(randomize(model, 0.5), (4,))
    assert small.get_submodule("0").weight is small.get_submodule("2").weight


def test_layers_with_hooks_or_parametrizations_are_left_unchanged() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
    randomize(model, 0)
    model[0].register_forward_hook(lambda module, inputs, output: output + 1)
    torch.nn.utils.parametrizations.weight_norm(model[2])
    zero(model[4], [], [0, 1])
    small = check(model, (4,))
    assert small(torch.zeros(1, 4).double()).shape == (1, 2)
    assert outputs(small) == [6, 6, 2]


class Mean(nn.Module):
    """Cannot be recorded, because it branches on its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.mean() > 0 else -x


class ReadAgain(nn.Module):
    """Changes a tensor in place that is read again later."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        z = y.view(-1, 6)
        y.relu_()
        return self.last(z)  # type: ignore[no-any-return]


def test_a_network_that_cannot_be_recorded_is_returned_unchanged() -> None:
    model = Mean()
    small = compact(model, torch.randn(2, 4))
    assert_same(model, small, torch.randn(3, 4))
    assert small is not model
    (note,) = notes_of(small)
    assert note.startswith("nothing was removed")
    assert "test_compaction_cases.py" in note


def test_a_tensor_that_is_read_again_after_it_was_changed_in_place() -> None:
    model = ReadAgain().double()
    zero(model.last, [], [0, 1])
    small = compact(model, torch.randn(2, 4).double())
    assert_same(model, small, torch.randn(3, 4).double())
    assert outputs(small) == [6, 2]  # the code has the size in it
    assert "first.weight" in notes_of(small)[0]


def test_a_model_that_does_not_run_raises_its_own_error() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        compact(nn.Sequential(nn.Linear(4, 2)), torch.randn(2, 5))


class Shared(nn.Module):
    """Returns a tensor that it also reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        hidden = (self.first(x) + y).relu()
        return {"hidden": hidden, "result": self.last(hidden)}


def test_several_inputs_and_outputs() -> None:
    model = randomize(Shared(), 0.7).eval()
    x, y = torch.randn(2, 4), torch.randn(2, 6)
    small = compact(model, (x, y))
    assert notes_of(small) == []
    for name, tensor in model(x, y).items():
        torch.testing.assert_close(small(x, y)[name], tensor)


@pytest.fixture(scope="module")
def pair() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = randomize(Block(), 0).eval()
    zero(model.conv, [0, 1, 2, 3, 4])  # type: ignore[arg-type]
    zero(model.head, [], [0])  # type: ignore[arg-type]
    return model, compact(model, torch.randn(1, 3, 16, 16))


def test_in_single_precision(pair: tuple[nn.Module, nn.Module]) -> None:
    model, small = pair
    x = torch.randn(4, 3, 16, 16)
    torch.testing.assert_close(small(x), model(x), rtol=1e-4, atol=1e-5)
    assert numbers(small) < numbers(model)
    assert {parameter.dtype for parameter in small.parameters()} == {torch.float32}
    assert not small.training


def test_copies_and_saved_states(pair: tuple[nn.Module, nn.Module]) -> None:
    small = pair[1]
    x = torch.randn(4, 3, 16, 16)
    again = copy.deepcopy(copy.deepcopy(small))
    assert again.notes == small.notes
    assert again.compaction == small.compaction
    assert torch.equal(again(x), small(x))
    file = io.BytesIO()
    torch.save(small.state_dict(), file)
    file.seek(0)
    for parameter in again.parameters():
        nn.init.zeros_(parameter)
    again.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(again(x), small(x))


def test_compiled(pair: tuple[nn.Module, nn.Module]) -> None:
    small = pair[1]
    x = torch.randn(3, 3, 16, 16)
    torch.testing.assert_close(torch.compile(small, backend="eager", fullgraph=True)(x), small(x))
    again = compact(cast(nn.Module, torch.compile(pair[0])), torch.randn(1, 3, 16, 16))
    assert numbers(again) == numbers(small)


def test_exported_to_onnx(pair: tuple[nn.Module, nn.Module], tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    small, path = pair[1], tmp_path / "small.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            small, (torch.randn(2, 3, 16, 16),), path, dynamic_shapes=({0: torch.export.Dim("batch")},), verbose=False
        )
    session = runtime.InferenceSession(path)
    x = torch.randn(5, 3, 16, 16)
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), small(x).detach(), rtol=1e-4, atol=1e-5)


def test_the_report(pair: tuple[nn.Module, nn.Module]) -> None:
    model, small = pair
    report = small.compaction
    assert isinstance(report, CompactionReport)
    layers = {name: m for name, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)}
    assert [layer.name for layer in report.layers] == list(layers)
    kept = sum(m.weight.numel() for m in small.modules() if isinstance(m, nn.Conv2d | nn.Linear))
    assert report.weights == (sum(m.weight.numel() for m in layers.values()), kept)
    assert f"{report.weights[0]:,} -> {kept:,}" in str(report).splitlines()[-1]


class Named(nn.Module):
    """Called by name, with an argument in the middle left out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor, skip: Tensor | None = None, gate: Tensor | None = None) -> Tensor:
        y = self.first(x) if skip is None else self.first(x) + skip
        return self.last(y if gate is None else y * gate)  # type: ignore[no-any-return]


def test_keyword_arguments() -> None:
    model = randomize(Named(), 0).eval()
    zero(model.last, [], [0, 5])  # type: ignore[arg-type]
    small = compact(model, {"x": torch.randn(2, 4), "gate": torch.rand(2, 1)})
    assert outputs(small) == [4, 2]
    assert type(small) is Named
    x, gate = torch.randn(3, 4), torch.rand(3, 1)
    torch.testing.assert_close(small(x, gate=gate), model(x, gate=gate))
    torch.testing.assert_close(small(x), model(x))


def test_a_network_that_is_pruned_by_channels_keeps_its_class_and_trains_on() -> None:
    model = randomize(Block(), 0)
    zero(model.head, [], [1, 2])  # type: ignore[arg-type]
    zero(model.conv, [1, 2], [1, 2])  # type: ignore[arg-type]
    small = compact(model, torch.randn(2, 3, 8, 8))
    assert type(small) is Block
    assert [name for name, _ in small.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert outputs(small) == [6, 6, 2]
    optimizer = torch.optim.SGD(small.train().parameters(), lr=0.1)
    before = small.get_parameter("stem.weight").clone()
    small(torch.randn(4, 3, 8, 8)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(before, small.get_parameter("stem.weight"))
