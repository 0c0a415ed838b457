"""The model card: every number against an independent count."""

from __future__ import annotations

import builtins
import importlib.util
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file
from torch import Tensor, nn

import flipout
from flipout.export import compact, effective_weights, save
from flipout.export.model_card import ModelCard, card
from flipout.export.timing import (
    Timing,
    format_milliseconds,
)
from flipout_lab import build
from tests.export.helpers import prune


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return prune(build("lenet-5", (1, 28, 28)), 0.98)


@pytest.fixture(scope="module")
def measured(model: nn.Module) -> ModelCard:
    return card(model, torch.randn(1, 1, 28, 28), repetitions=2, batches=(1, 2), onnx=False)


def test_the_counts(measured: ModelCard, model: nn.Module, tmp_path: Path) -> None:
    example = torch.randn(1, 1, 28, 28)
    weights = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    assert measured.prunable == 430_500
    assert measured.nonzero == sum(int(weight.count_nonzero()) for weight in weights)
    assert measured.effective == effective_weights(model, example).effective < measured.nonzero
    save(model, tmp_path / "sparse")
    save_file(model.state_dict(), tmp_path / "dense")
    save_file(compact(model, example).state_dict(), tmp_path / "small")
    files = (measured.file_sparse, measured.file_dense, measured.file_compacted)
    assert files[0] == (tmp_path / "sparse").stat().st_size
    assert abs(files[1] - (tmp_path / "dense").stat().st_size) < 100
    assert abs(files[2] - (tmp_path / "small").stat().st_size) < 100
    first, second, third, fourth = (int(weight.count_nonzero()) for weight in weights)
    assert measured.multiply_adds_dense == 500 * 24 * 24 + 25_000 * 8 * 8 + 400_000 + 5000
    assert measured.multiply_adds_nonzero == first * 24 * 24 + second * 8 * 8 + third + fourth
    assert measured.multiply_adds_nonzero <= measured.multiply_adds_compacted < measured.multiply_adds_dense
    assert measured.activations_compacted <= measured.activations_dense


def test_every_form_is_timed_at_every_batch_size(measured: ModelCard) -> None:
    forms = ("dense", "compacted", "accelerated")
    assert [(each.form, each.runtime, each.batch) for each in measured.latencies] == [
        (form, "PyTorch", batch) for batch in (1, 2) for form in forms
    ]
    assert all(0 < each.time.low <= each.time.median <= each.time.high for each in measured.latencies)


def test_all_forms_of_the_card_have_the_same_numbers(measured: ModelCard) -> None:
    read = json.loads(measured.json())
    assert read["nonzero"] == measured.nonzero
    assert read["latencies"][0]["time"]["median"] == measured.latencies[0].time.median
    console = Console(width=150, record=True, file=io.StringIO())
    for drawn in measured.rich_tables():
        console.print(drawn)
    texts = (str(measured), measured.markdown(), console.export_text())
    for text in texts:
        assert f"{measured.nonzero:,}" in text
        assert f"{measured.multiply_adds_compacted:,}" in text
        assert format_milliseconds(measured.latencies[-1].time.median) in text
    assert all("A GPU is not faster with zeros" in text for text in texts[:2])
    lines = measured.markdown().splitlines()
    assert {line.count("|") for line in lines if line.startswith("|")} == {4, 6}


def test_the_model_is_not_changed(model: nn.Module, measured: ModelCard) -> None:
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_onnxruntime_is_timed_where_it_is_installed() -> None:
    pytest.importorskip("onnxruntime")
    measured_card = card(nn.Sequential(nn.Linear(4, 3)), torch.randn(1, 4), repetitions=1, batches=(2,))
    assert [(each.form, each.runtime) for each in measured_card.latencies][3:] == [
        ("dense", "onnxruntime"),
        ("compacted", "onnxruntime"),
    ]


def test_onnxruntime_is_left_out_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "onnxscript" else found(name, *rest)
    )
    measured_card = card(nn.Sequential(nn.Linear(4, 3)), torch.randn(1, 4), repetitions=1, batches=(1,))
    assert {each.runtime for each in measured_card.latencies} == {"PyTorch"}


class Branching(nn.Module):
    """Cannot be exported to ONNX."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out if x.sum() > 0 else -out


def test_what_could_not_be_measured_is_noted(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    measured_card = card(Branching(), torch.randn(1, 4), repetitions=1, batches=(1,))
    assert {each.runtime for each in measured_card.latencies} == {"PyTorch"}
    assert "not timed in onnxruntime: Branching cannot be written as ONNX" in str(measured_card)
    assert capfd.readouterr() == ("", "")


def test_a_dead_network_is_noted(measured: ModelCard) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    nn.init.zeros_(model.get_parameter("2.weight"))
    measured_card = card(model, torch.randn(1, 4), repetitions=1, batches=(1,), onnx=False)
    assert (measured_card.nonzero, measured_card.effective) == (16, 0)
    assert "No weight lies on a path" in str(measured_card)
    assert "No weight lies on a path" not in str(measured)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(10, 20, batch_first=True), nn.Linear(20, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(x)[0])
        return out


def quick(model: nn.Module, *inputs: Tensor) -> ModelCard:
    return card(model, inputs, repetitions=1, batches=(1,), onnx=False)


def test_fused_kernels_are_counted() -> None:
    model = Recurrent()
    measured_card = quick(model, torch.randn(2, 7, 10))
    assert measured_card.multiply_adds_dense == 7 * (80 * 30 + 20 * 4)
    assert measured_card.multiply_adds_nonzero == measured_card.multiply_adds_compacted
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    encoder = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(32, 4))
    dense = 2 * (9 * (4 * 32 * 32 + 2 * 32 * 64) + 2 * 9 * 9 * 32) + 9 * 32 * 4
    assert quick(encoder, torch.randn(1, 9, 32)).multiply_adds_dense == dense
    prune(encoder, 0.9)
    measured_card = quick(encoder, torch.randn(1, 9, 32))
    zeros = sum(int((weight == 0).sum()) for weight in encoder.parameters() if weight.ndim > 1)
    assert measured_card.multiply_adds_nonzero == dense - 9 * zeros > 0
    assert measured_card.prunable == sum(weight.numel() for weight in encoder.parameters() if weight.ndim > 1)


def test_weights_pruned_with_include_are_on_the_card() -> None:
    model = Recurrent()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.9, steps=20, include="lstm")
    assert quick(model, torch.randn(1, 7, 10)).prunable == 80 * 30 + 80  # also before anything is pruned
    for _ in range(20):
        model(torch.randn(3, 7, 10)).square().mean().backward()
        optimizer.step()
    for _ in range(2):
        measured_card = quick(model, torch.randn(1, 7, 10))
        assert (measured_card.prunable, measured_card.nonzero) == (80 * 30 + 80, 240 + 80)
        assert measured_card.multiply_adds_nonzero == 7 * (240 + 80)
        pruner.remove()


def test_what_is_not_counted_is_named() -> None:
    text = str(quick(nn.Bilinear(3, 4, 5), torch.randn(2, 3), torch.randn(2, 4)))
    assert "the multiply-adds do not include those of aten._trilinear, for which there is no formula" in text


def test_a_network_for_volumes() -> None:
    layers = nn.Conv3d(1, 4, 3), nn.BatchNorm3d(4), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)
    measured_card = quick(prune(nn.Sequential(*layers), 0.5), torch.randn(1, 1, 4, 4, 4))
    assert measured_card.multiply_adds_dense == 8 * 4 * 27 + 32 * 3
    assert {each.form for each in measured_card.latencies} == {"dense", "compacted", "accelerated"}


def test_a_busy_machine_is_noted(measured: ModelCard) -> None:
    first = measured.latencies[0]
    for high, busy in ((1.9, False), (2.1, True)):
        latencies = tuple(replace(each, time=Timing(1.0, 1.0, 1.0)) for each in measured.latencies[1:])
        remarks = replace(measured, latencies=(replace(first, time=Timing(1.5, 1.0, high)), *latencies)).remarks
        assert any("was busy" in remark for remark in remarks) == busy


def test_without_rich(measured: ModelCard, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("rich"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    assert "median ms" in str(measured)
    with pytest.raises(ImportError, match="flipout"):
        measured.rich_tables()
