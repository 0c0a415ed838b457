"""Scripted and quantized networks are refused with a sentence that names the fix."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flipout import export

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore:.*quantized.*:UserWarning")

X = torch.randn(2, 4)
EXPORTS: dict[str, Callable[[nn.Module, Path], Any]] = {
    "compact": lambda model, path: export.compact(model, X),
    "accelerate": lambda model, path: export.accelerate(model, X, repetitions=1),
    "card": lambda model, path: export.card(model, X, repetitions=1, batches=(1,), onnx=False),
    "effective_weights": lambda model, path: export.effective_weights(model, X),
    "to_pt2": lambda model, path: export.to_pt2(model, path / "net.pt2", X),
    "to_onnx": lambda model, path: export.to_onnx(model, path / "net.onnx", X),
}


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


def scripted(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(model)


def traced(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.trace(model, X)  # type: ignore[no-any-return]


def quantized(model: nn.Module) -> nn.Module:
    quantization = pytest.importorskip("torch.ao.quantization")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return quantization.quantize_dynamic(model, {nn.Linear})  # type: ignore[no-any-return]


@pytest.mark.parametrize("convert", [scripted, traced])
@pytest.mark.parametrize("name", EXPORTS)
def test_scripted_networks(name: str, convert: Callable[[nn.Module], nn.Module], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="TorchScript"):
        EXPORTS[name](convert(network()), tmp_path)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("wrap", [lambda m: m, nn.Sequential])
@pytest.mark.parametrize("name", EXPORTS)
def test_quantized_networks(name: str, wrap: Callable[[nn.Module], nn.Module], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"0 \(Linear\) is quantized"):
        EXPORTS[name](wrap(quantized(network())), tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_sparse_file_of_a_quantized_network(tmp_path: Path) -> None:
    model = quantized(network())
    for state in (model, model.state_dict()):
        with pytest.raises(TypeError, match="0 is quantized"):
            export.save(state, tmp_path / "net")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensor = torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)
    with pytest.raises(TypeError, match="w is quantized"):
        export.save({"w": tensor}, tmp_path / "net")
    assert not any(tmp_path.iterdir())


def test_a_sparse_file_of_a_scripted_network(tmp_path: Path) -> None:
    model = network()
    export.save(scripted(model), tmp_path / "net")
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in export.load(tmp_path / "net").items())


def test_a_network_that_is_prepared_for_quantization_is_not_quantized() -> None:
    functional = pytest.importorskip("torch.ao.nn.quantized").FloatFunctional

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.sum = nn.Linear(4, 4), functional()

        def forward(self, x: torch.Tensor) -> Any:
            return self.sum.add(x, self.layer(x))

    assert export.effective_weights(Sum(), X).effective == 16


def test_a_scripted_part_is_left_unchanged(capfd: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.Linear(4, 6), scripted(nn.Sequential(nn.Linear(6, 6), nn.ReLU())), nn.Linear(6, 3)).eval()
    nn.init.zeros_(model.get_parameter("2.weight")[:, :3])
    for made in (export.compact(model, X), export.accelerate(model, X, repetitions=1)):
        torch.testing.assert_close(made(X), model(X))
    small = export.compact(model, X)
    assert small.notes
    assert capfd.readouterr().err == ""
