"""ONNX files: onnxruntime computes the same as the network."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flipout.export import compact
from flipout.export.formats.onnx_file import to_onnx
from flipout.export.formats.onnx_runtime import open_session, run_session
from flipout_lab import build
from tests.export.speed.test_acceleration import prune

pytest.importorskip("onnxruntime")


def run(path: Path, *inputs: Tensor) -> list[Tensor]:
    return run_session(open_session(path), inputs)


def test_dense_and_compacted_for_any_batch_size_with_their_zeros(tmp_path: Path) -> None:
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


def test_several_inputs_and_outputs(tmp_path: Path) -> None:
    model = Two().eval()
    to_onnx(model, tmp_path / "two.onnx", (torch.tensor([[1, 2]]), torch.randn(1, 4)))
    inputs = torch.tensor([[0, 4], [3, 3], [1, 2]]), torch.randn(3, 4)
    for ours, theirs in zip(model(*inputs), run(tmp_path / "two.onnx", *inputs), strict=True):
        torch.testing.assert_close(theirs, ours)


def test_different_outputs_are_an_error_and_no_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.raises(ValueError, match=r"onnxruntime differ from those of Linear for a batch of 1 \(off by 1\.0e-02"):
        to_onnx(model, path, torch.randn(1, 3))
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("net.onnx", "what was there")]


class Branching(nn.Module):
    """Branches on the values of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


def test_a_network_that_cannot_be_exported_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Branching cannot be written as ONNX: "):
        to_onnx(Branching(), tmp_path / "net.onnx", torch.randn(1, 3))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("missing", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name == missing:
            raise ImportError(f"No module named {name!r}", name=name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=rf"{missing} is missing\): pip install 'flipout\[export\]'"):
        to_onnx(nn.Linear(3, 2), tmp_path / "net.onnx", torch.randn(1, 3))
