"""ONNX files of eight bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import flipout
from flipout.export.formats import open_session, run_session

onnx = pytest.importorskip("onnx")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10)
    )
    flipout.prune(model, batches(), sparsity=0.5, method="magnitude")
    return model.eval()


def batches() -> list[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(0)
    return [(torch.randn(16, 3, 8, 8, generator=random), torch.zeros(16)) for _ in range(3)]


def test_the_file_is_smaller_and_zeros_stay_zeros(tmp_path: Path) -> None:
    model, path = network(), tmp_path / "net.onnx"
    flipout.export.to_onnx(model, tmp_path / "float.onnx", batches()[0][0])
    difference = flipout.export.to_onnx(model, path, batches()[0][0], calibrate=iter(batches()))
    assert path.stat().st_size < 0.5 * (tmp_path / "float.onnx").stat().st_size
    x = batches()[1][0][:5]
    (found,) = run_session(open_session(path), (x,))
    with torch.no_grad():
        assert (found - model(x)).abs().max() <= difference
    weights = [onnx.numpy_helper.to_array(each) for each in onnx.load(path).graph.initializer]
    (linear,) = [each for each in weights if each.dtype == "int8" and each.size == 10240]
    pruned = model.get_parameter("4.weight").eq(0).numpy()
    assert not linear.reshape(10, 1024)[pruned].any() if linear.shape[0] == 10 else not linear.T[pruned].any()


def test_a_network_that_cannot_be_quantized_well_is_refused(tmp_path: Path) -> None:
    model = network()
    with pytest.raises(ValueError, match="int8"):
        flipout.export.to_onnx(model, tmp_path / "net.onnx", batches()[0][0], calibrate=OtherInputs())
    with pytest.raises(ValueError, match="batches"):
        flipout.export.to_onnx(model, tmp_path / "net.onnx", batches()[0][0], calibrate=[])
    assert list(tmp_path.iterdir()) == []


class OtherInputs:
    """Batches that are far larger when they are read again: the network was calibrated for others."""

    def __init__(self) -> None:
        self.scale = 1e-3

    def __iter__(self):  # type: ignore[no-untyped-def]
        yield from (x * self.scale for x, _ in batches())
        self.scale *= 10


def test_the_card_shows_size_and_agreement() -> None:
    card = flipout.export.card(network(), batches()[0][0], repetitions=1, batches=(1,), onnx=False, calibrate=batches())
    assert card.file_int8 is not None
    assert card.file_int8 < card.file_compacted
    assert card.agreement is not None
    assert card.agreement > 0.8
    assert "int8" in str(card)
    assert ("compacted int8", "onnxruntime") in {(each.form, each.runtime) for each in card.latencies}
