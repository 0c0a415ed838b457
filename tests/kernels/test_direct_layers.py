"""Direct sparse layers for inference, and what is fused into them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx, nn

from flipout import export
from flipout.export import layer_trials
from flipout.kernels.direct_layers import DirectConv2d, direct_layer
from flipout.kernels.fusion import fuse

from .networks import ConvNet, batch


def pruned_layer(layer: nn.Module, density: float = 0.2) -> nn.Module:
    torch.manual_seed(0)
    weight = layer.weight
    assert isinstance(weight, Tensor)
    weight.data *= torch.rand(weight.shape) < density
    return layer.eval()


def replaced(model: nn.Module) -> nn.Module:
    """A traced copy of a network with direct sparse layers."""
    graph = fx.symbolic_trace(copy.deepcopy(model).eval())
    for name, layer in list(graph.named_modules()):
        direct = direct_layer(layer) if isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Linear)) else None
        if direct is not None:
            graph.set_submodule(name, direct)
    return graph


class Residual(nn.Module):
    """A block with a sum, as in ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Conv2d(6, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        out = self.second(torch.relu(self.first(x)))
        out += self.shortcut(x)
        out = self.relu(out)
        return torch.nn.functional.relu(self.second(out) + out)


LAYERS: list[tuple[Callable[[], nn.Module], tuple[int, ...]]] = [
    (lambda: nn.Conv2d(5, 7, 3, padding=1), (3, 5, 8, 9)),
    (lambda: nn.Conv2d(5, 7, 3, stride=2, padding="valid", bias=False), (5, 8, 9)),
    (lambda: nn.Conv1d(5, 7, 4, padding="same", dilation=2), (2, 5, 30)),
    (lambda: nn.Linear(20, 6), (20,)),
    (lambda: nn.Linear(20, 6), (3, 4, 20)),
]


@pytest.mark.parametrize(("make", "shape"), LAYERS)
def test_a_direct_layer_has_the_outputs_of_the_dense_one(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    layer = pruned_layer(make())
    direct = direct_layer(layer)
    assert direct is not None
    assert isinstance(direct, type(layer))
    assert list(direct.state_dict()) == list(layer.state_dict())
    for number in range(2):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(number))
        with torch.no_grad():
            torch.testing.assert_close(direct(x), layer(x), rtol=1e-4, atol=1e-5)
            for other in (copy.deepcopy(direct), pickle.loads(pickle.dumps(direct))):
                assert torch.equal(other(x), direct(x))
            if x.ndim == 4:
                assert torch.equal(direct(x[:0]), layer(x[:0]))


def test_other_types_and_layers_are_left_to_torch() -> None:
    layer = pruned_layer(nn.Conv2d(4, 4, 3))
    direct = direct_layer(layer)
    assert direct is not None
    assert direct.double()(torch.randn(1, 4, 5, 5, dtype=torch.float64)).dtype == torch.float64
    assert direct_layer(nn.Conv2d(4, 4, 3, groups=2)) is None
    assert direct_layer(nn.Conv2d(4, 4, 3).double()) is None
    assert direct_layer(nn.ReLU()) is None


def test_loaded_weights_are_used() -> None:
    layer, other = pruned_layer(nn.Conv2d(4, 4, 3)), pruned_layer(nn.Conv2d(4, 4, 3), 0.5)
    direct = direct_layer(layer)
    assert direct is not None
    direct.load_state_dict(other.state_dict())
    x = torch.randn(2, 4, 6, 6)
    torch.testing.assert_close(direct(x), other(x).detach(), rtol=1e-4, atol=1e-5)


def test_relus_and_sums_become_a_part_of_layers() -> None:
    torch.manual_seed(0)
    model = Residual().eval()
    graph = fuse(replaced(model))
    assert isinstance(graph, fx.GraphModule)
    x = torch.randn(3, 6, 7, 7)
    with torch.no_grad():
        torch.testing.assert_close(graph(x), model(x), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(copy.deepcopy(graph)(x), model(x), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(graph.double()(x.double()), model.double()(x.double()), rtol=1e-4, atol=1e-5)


def test_a_block_of_one_layer_and_a_sum_is_one_call() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.shortcut = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 1)

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.layer(x) + self.shortcut(x))

    model = Block().eval()
    graph = fuse(replaced(model))
    assert isinstance(graph, fx.GraphModule)
    assert [node.op for node in graph.graph.nodes] == ["placeholder", "call_module", "call_module", "output"]
    x = torch.randn(3, 6, 7, 7)
    with torch.no_grad():
        torch.testing.assert_close(graph(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_network_that_is_not_traced_stays_as_it_is() -> None:
    model = ConvNet()
    assert fuse(model) is model


def test_a_network_is_saved_and_loaded_by_torch_export(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = ConvNet().eval()
    for layer in (model.first, model.second, model.third, model.line, model.head):
        layer.weight.data *= torch.rand(layer.weight.shape) < 0.2
    network = fuse(replaced(model))
    x, _ = batch(0)
    program = torch.export.export(network, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    torch.export.save(program, tmp_path / "network.pt2")
    loaded = torch.export.load(tmp_path / "network.pt2").module()
    more, _ = batch(1, images=17)
    with torch.no_grad():
        assert "sparse_convolution" in str(program.graph)
        torch.testing.assert_close(loaded(x), model(x), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(loaded(more), model(more), rtol=1e-4, atol=1e-5)


def test_an_accelerated_network_is_saved_without_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_trials, "fastest_or_first", lambda times: list(times)[-1])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
    for layer in (model[0], model[2]):
        pruned_layer(layer)
    x, _ = batch(0)
    fast = export.accelerate(model, x, repetitions=1)
    assert sum(isinstance(layer, DirectConv2d) for layer in fast.modules()) == 2
    export.to_pt2(fast, tmp_path / "fast.pt2", x)
    program = torch.export.load(tmp_path / "fast.pt2")
    assert str(program.graph).count("flipout.sparse_convolution") == 2
    with torch.no_grad():
        torch.testing.assert_close(program.module()(x), model(x), rtol=1e-4, atol=1e-5)


def test_acceleration_chooses_direct_layers_by_measurement() -> None:
    torch.manual_seed(0)
    model = ConvNet().eval()
    for layer in (model.first, model.second, model.third):
        layer.weight.data *= torch.rand(layer.weight.shape) < 0.1
    x, _ = batch(0)
    fast = export.accelerate(model, x, repetitions=1)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-3, atol=1e-4)
    tried = {choice.name: set(choice.tried) for choice in fast.choices}  # type: ignore[union-attr]
    assert tried["second"] == {"dense", "direct sparse"}
    assert isinstance(direct_layer(model.second), DirectConv2d)
