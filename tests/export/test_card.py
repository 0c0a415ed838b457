"""The card: every number against a count of its own."""

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

from flipout.export import compact, effective, save
from flipout.export.costs import multiply_adds, peak_activations, readable, skipped_multiply_adds
from flipout.export.model_card import Card, card
from flipout.export.speed.interleaved_timing import Time, digits, interleaved, summary
from flipout.lab import build
from tests.export.test_accelerate import prune


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return prune(build("lenet-5", (1, 28, 28)), 0.98)


@pytest.fixture(scope="module")
def measured(model: nn.Module) -> Card:
    return card(model, torch.randn(1, 1, 28, 28), repetitions=2, batches=(1, 2), onnx=False)


def test_the_counts(measured: Card, model: nn.Module, tmp_path: Path) -> None:
    example = torch.randn(1, 1, 28, 28)
    weights = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    assert measured.prunable == 430_500
    assert measured.nonzero == sum(int(weight.count_nonzero()) for weight in weights)
    assert measured.effective == effective(model, example).effective < measured.nonzero
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


def test_every_form_is_timed_at_every_batch_size(measured: Card) -> None:
    forms = ("dense", "compacted", "accelerated")
    assert [(each.form, each.runtime, each.batch) for each in measured.latencies] == [
        (form, "PyTorch", batch) for batch in (1, 2) for form in forms
    ]
    assert all(0 < each.time.low <= each.time.median <= each.time.high for each in measured.latencies)


def test_all_ways_to_read_it_tell_the_same(measured: Card) -> None:
    read = json.loads(measured.json())
    assert read["nonzero"] == measured.nonzero
    assert read["latencies"][0]["time"]["median"] == measured.latencies[0].time.median
    console = Console(width=150, record=True, file=io.StringIO())
    for drawn in measured.table():
        console.print(drawn)
    texts = (str(measured), measured.markdown(), console.export_text())
    for text in texts:
        assert f"{measured.nonzero:,}" in text
        assert f"{measured.multiply_adds_compacted:,}" in text
        assert digits(measured.latencies[-1].time.median) in text
    assert all("A GPU does not run zeros" in text for text in texts[:2])
    lines = measured.markdown().splitlines()
    assert {line.count("|") for line in lines if line.startswith("|")} == {4, 6}


def test_the_model_stays_as_it_was(model: nn.Module, measured: Card) -> None:
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_onnxruntime_is_timed_where_it_is_installed() -> None:
    pytest.importorskip("onnxruntime")
    told = card(nn.Sequential(nn.Linear(4, 3)), torch.randn(1, 4), repetitions=1, batches=(2,))
    assert [(each.form, each.runtime) for each in told.latencies][3:] == [
        ("dense", "onnxruntime"),
        ("compacted", "onnxruntime"),
    ]


def test_onnxruntime_is_left_out_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "onnxscript" else found(name, *rest)
    )
    told = card(nn.Sequential(nn.Linear(4, 3)), torch.randn(1, 4), repetitions=1, batches=(1,))
    assert {each.runtime for each in told.latencies} == {"PyTorch"}


class Branching(nn.Module):
    """What ONNX cannot hold."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if x.sum() > 0 else -self.layer(x)


def test_what_could_not_be_done_is_told() -> None:
    pytest.importorskip("onnxruntime")
    told = card(Branching(), torch.randn(1, 4), repetitions=1, batches=(1,))
    assert {each.runtime for each in told.latencies} == {"PyTorch"}
    assert "not timed in onnxruntime: Branching cannot be written as ONNX" in str(told)


def test_a_network_that_is_dead_is_told_so(measured: Card) -> None:
    with torch.no_grad():
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
        model[2].weight.zero_()
    told = card(model, torch.randn(1, 4), repetitions=1, batches=(1,), onnx=False)
    assert (told.nonzero, told.effective) == (16, 0)
    assert "No weight lies on a path" in str(told)
    assert "No weight lies on a path" not in str(measured)


def test_a_busy_machine_is_told_of(measured: Card) -> None:
    first = measured.latencies[0]
    for high, busy in ((1.9, False), (2.1, True)):
        latencies = tuple(replace(each, time=Time(1.0, 1.0, 1.0)) for each in measured.latencies[1:])
        told = replace(measured, latencies=(replace(first, time=Time(1.5, 1.0, high)), *latencies)).remarks
        assert any("was busy" in remark for remark in told) == busy


def test_without_rich(measured: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("rich"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    assert "median ms" in str(measured)
    with pytest.raises(ImportError, match="flipout"):
        measured.table()


class Residual(nn.Module):
    """Keeps its input of 400 bytes alive while two more of that size are made."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * 2).exp() + x


def test_peak_activations_by_hand() -> None:
    x = torch.randn(1, 100)
    # Of each addition and product: what is read, what is written, and what is read again later.
    assert peak_activations(nn.Identity(), (x,)) == 400
    assert peak_activations(nn.Sequential(nn.ReLU(inplace=True)), (x,)) == 400
    assert peak_activations(nn.Sequential(nn.Linear(100, 50), nn.Flatten()), (x,)) == 600
    assert peak_activations(Residual(), (x,)) == 1200


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(6, 4), (2, 3, 6)),
        (nn.Conv1d(4, 6, 3, groups=2), (2, 4, 9)),
        (nn.Conv2d(4, 6, 3, stride=2, padding=1), (2, 4, 9, 8)),
        (nn.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 5, 4)),
    ],
    ids=repr,
)
def test_a_layer_of_zeros_skips_all_its_multiply_adds(layer: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    assert skipped_multiply_adds(layer, (x,)) == 0
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    assert skipped_multiply_adds(layer, (x,)) == multiply_adds(layer, (x,)) > 0


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (44_745_400, "44.7 MB"), (5 * 10**12, "5,000.0 GB")],
)
def test_readable_sizes(size: int, text: str) -> None:
    assert readable(size) == text


def test_works_take_turns() -> None:
    calls: list[str] = []
    taken = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2, warm_up=0)
    assert calls == ["a", "a", "b", "b", "b", "b", "a", "a"]  # and who is first changes
    assert set(taken) == {"a", "b"}


def test_the_middle_half() -> None:
    assert (summary([3.0]).low, summary([3.0]).high) == (3, 3)
    spread = summary([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (spread.low, spread.median, spread.high) == (2, 3, 4)
    assert str(spread) == "3.00 (2.00 to 4.00)"
    assert str(summary([0.0123])) == "0.012 (0.012 to 0.012)"
