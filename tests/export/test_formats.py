"""ONNX and `torch.export` files: onnxruntime and torch compute the same from them as the network."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flipout.export import compact, to_onnx, to_pt2
from flipout.export.formats import open_session, run_session
from flipout_lab import build
from tests.export.helpers import prune

pytest.importorskip("onnxruntime")


def run(path: Path, *inputs: Tensor) -> list[Tensor]:
    return run_session(open_session(path), inputs)


def test_onnx_of_dense_and_compacted_for_any_batch_size_with_their_zeros(tmp_path: Path) -> None:
    import onnx
    from onnx import numpy_helper

    model = prune(build("lenet-5", (1, 28, 28), width=0.5), 0.97)
    example = torch.randn(1, 1, 28, 28)
    small = compact(model, example)
    for network, name in ((model, "dense"), (small, "small")):
        path = tmp_path / f"{name}.onnx"
        assert to_onnx(network, path, example) < 1e-4
        for batch in (1, 2, 7):
            x = torch.randn(batch, 1, 28, 28)
            torch.testing.assert_close(run(path, x)[0], model(x), rtol=1e-3, atol=1e-4)
    stored = [numpy_helper.to_array(tensor) for tensor in onnx.load(tmp_path / "dense.onnx").graph.initializer]
    weights = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    assert sum(int((array != 0).sum()) for array in stored if array.ndim > 1) == sum(
        int(weight.count_nonzero()) for weight in weights
    )
    assert (tmp_path / "small.onnx").stat().st_size < (tmp_path / "dense.onnx").stat().st_size
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dense.onnx", "small.onnx"]


class Two(nn.Module):
    """Takes token indices and numbers, and has two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(5, 4), nn.Linear(4, 3)

    def forward(self, words: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        x = self.layer(self.words(words).mean(1) + numbers)
        return x, x.relu()


def test_onnx_of_several_inputs_and_outputs(tmp_path: Path) -> None:
    model = Two().eval()
    to_onnx(model, tmp_path / "two.onnx", (torch.tensor([[1, 2]]), torch.randn(1, 4)))
    inputs = torch.tensor([[0, 4], [3, 3], [1, 2]]), torch.randn(3, 4)
    for ours, theirs in zip(model(*inputs), run(tmp_path / "two.onnx", *inputs), strict=True):
        torch.testing.assert_close(theirs, ours)


def test_different_outputs_of_onnxruntime_are_an_error_and_no_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(3, 2)
    path = tmp_path / "net.onnx"
    path.write_text("what was there")

    class Wrong:
        """A session with wrong outputs."""

        def __init__(self, inner: Any) -> None:
            self.get_inputs, self.inner = inner.get_inputs, inner

        def run(self, *arguments: Any) -> list[Any]:
            return [output + 0.01 for output in self.inner.run(*arguments)]

    monkeypatch.setattr(sys.modules[to_onnx.__module__], "open_session", lambda path: Wrong(open_session(path)))
    with pytest.raises(ValueError, match="onnxruntime"):
        to_onnx(model, path, torch.randn(1, 3))
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("net.onnx", "what was there")]


class Branching(nn.Module):
    """Branches on the values of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class TwoRows(nn.Module):
    """Takes a batch of two only."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(2, 3)


@pytest.mark.parametrize("write", [to_onnx, to_pt2])
@pytest.mark.parametrize("model", [Branching(), TwoRows()])
def test_a_network_that_cannot_be_exported_is_an_error(
    write: Any, model: nn.Module, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=type(model).__name__) as caught:
        write(model, tmp_path / "net.pt2", torch.randn(2, 3))
    assert not str(caught.value).endswith(":")  # the reason is there, also if it begins on the second line
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("missing", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name == missing:
            raise ImportError(f"No module named {name!r}", name=name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=missing):
        to_onnx(nn.Linear(3, 2), tmp_path / "net.onnx", torch.randn(1, 3))


def test_pt2_of_a_compacted_network_for_any_batch_size(tmp_path: Path) -> None:
    model = prune(build("lenet-5", (1, 28, 28), width=0.5), 0.97)
    example = torch.randn(1, 1, 28, 28)
    assert to_pt2(compact(model, example), tmp_path / "net.pt2", example) < 1e-4
    read = torch.export.load(tmp_path / "net.pt2").module()
    for batch in (1, 2, 7):
        x = torch.randn(batch, 1, 28, 28)
        torch.testing.assert_close(read(x), model(x), rtol=1e-3, atol=1e-4)


class Kinds(nn.Module):
    """Has floating-point, integer and boolean outputs."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": x * 2, "answer": x.argmax(1), "sure": x.amax(1) > 0}


def test_pt2_with_outputs_of_every_kind(tmp_path: Path) -> None:
    assert to_pt2(Kinds(), tmp_path / "net.pt2", torch.randn(1, 4)) == 0


def test_different_outputs_of_torch_are_an_error_and_no_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = torch.export.export
    monkeypatch.setattr(torch.export, "export", lambda _, *inputs, **options: right(nn.ReLU(), *inputs, **options))
    with pytest.raises(ValueError, match=r"torch\.export"):
        to_pt2(nn.Tanh(), tmp_path / "net.pt2", torch.randn(1, 3))
    assert not list(tmp_path.iterdir())
