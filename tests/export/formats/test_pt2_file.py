"""`torch.export` files: torch computes the same from them as the network."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from flipout.export import compact, to_pt2
from flipout_lab import build
from tests.export.speed.test_acceleration import prune


def test_a_compacted_network_for_any_batch_size(tmp_path: Path) -> None:
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


def test_outputs_of_every_kind(tmp_path: Path) -> None:
    assert to_pt2(Kinds(), tmp_path / "net.pt2", torch.randn(1, 4)) == 0


class Branching(nn.Module):
    """Branches on the values of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


def test_a_network_that_cannot_be_exported_is_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="Branching cannot be exported: "):
        to_pt2(Branching(), tmp_path / "net.pt2", torch.randn(1, 3))
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")


def test_different_outputs_are_an_error_and_no_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[to_pt2.__module__]
    right = module._export
    monkeypatch.setattr(module, "_export", lambda network, inputs: right(nn.ReLU(), inputs))
    with pytest.raises(ValueError, match=r"outputs of torch\.export differ from those of Tanh"):
        to_pt2(nn.Tanh(), tmp_path / "net.pt2", torch.randn(1, 3))
    assert not list(tmp_path.iterdir())
