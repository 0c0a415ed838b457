"""Training with sparse kernels: the same training, in the same model."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import warnings
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, fx, nn

import flipout
from flipout.kernels import SparseKernelsWarning, read_saved
from flipout.kernels.sparse_modules import Seen, convolution_of
from flipout.kernels.speed_table import DENSITIES, SpeedTable

from .networks import ConvNet, batch, on_every_density, pruned, step

LAYERS = ["first.weight", "second.weight", "third.weight", "line.weight", "head.weight"]


class Trained(NamedTuple):
    model: Any
    optimizer: Any
    pruner: Any
    kernels: Any
    losses: list[float]


def trained(sparse: bool, steps: int = 12, **options: Any) -> Trained:
    model, optimizer, pruner, kernels = pruned(sparse, **options)
    losses = [step(model, optimizer, number) for number in range(steps)]
    return Trained(model, optimizer, pruner, kernels, losses)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (flipout.GlobalMagnitude, {}),
        (flipout.PaperFlipOut, {}),
        (flipout.FlipOut, {}),
        (flipout.Fisher, {}),
    ],
)
def test_a_training_is_the_same_up_to_rounding(method: Any, options: dict[str, Any]) -> None:
    dense, sparse = (trained(kind, method=method, **options) for kind in (False, True))
    assert sparse[3].layers == LAYERS
    assert sparse[-1] == pytest.approx(dense[-1], rel=1e-3)
    for name, mask in dense[2].masks.items():
        assert torch.equal(mask, sparse[2].masks[name])
    for expected, found in zip(dense[0].parameters(), sparse[0].parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_gradients_of_pruned_weights_are_zero_and_those_of_kept_ones_are_the_dense_ones() -> None:
    run = trained(True)
    model, pruner, kernels = run.model, run.pruner, run.kernels
    plain = copy.deepcopy(model)
    x, y = batch(99)
    for network in (model, plain):
        nn.functional.cross_entropy(network(x), y).backward()
    for name, mask in pruner.masks.items():
        gradient, dense = (network.get_parameter(name).grad for network in (model, plain))
        assert gradient is not None
        assert dense is not None
        assert not gradient[~mask].any()
        torch.testing.assert_close(gradient[mask], dense[mask], rtol=1e-3, atol=1e-5)
    assert kernels.layers == LAYERS


def test_the_model_stays_the_users() -> None:
    run = trained(True)
    model, pruner = run.model, run.pruner
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in ConvNet().named_parameters()]
    assert list(model.state_dict()) == list(ConvNet().state_dict())
    assert isinstance(model.first, nn.Conv2d)
    assert isinstance(model.line, nn.Conv1d)
    assert isinstance(model.head, nn.Linear)
    first, weight = model.first, model.first.weight
    pruner.remove()
    assert model.first is first
    assert model.first.weight is weight
    assert type(model.first) is nn.Conv2d
    assert vars(model.first).keys() == vars(nn.Conv2d(1, 1, 1)).keys()


def test_copies_and_pickles_are_ordinary_layers() -> None:
    run = trained(True)
    model = run.model
    x, _ = batch(5)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies = copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)
    for other in copies:
        assert type(other.first) is nn.Conv2d
        assert type(other.line) is nn.Conv1d
        assert type(other.head) is nn.Linear
        assert vars(other.first).keys() == vars(nn.Conv2d(1, 1, 1)).keys()
        torch.testing.assert_close(other(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_resumed_training_has_the_same_bits() -> None:
    run = trained(True)
    model, kernels = run.model, run.kernels
    first = trained(True, steps=5)
    saved = [each.state_dict() for each in first[:3]]
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    other = pruned(True, seed=1)
    for each, state in zip(other[:3], torch.load(file, weights_only=True), strict=True):
        each.load_state_dict(state)
    assert other[3].layers == first[3].layers
    for number in range(5, 12):
        step(other[0], other[1], number)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other[0].state_dict()[name]), name
    assert other[3].layers == kernels.layers


def test_a_table_decides_which_layers_are_sparse() -> None:
    model, optimizer, pruner, kernels = pruned(True)
    kernels.table = SpeedTable()
    step(model, optimizer, 0)
    assert kernels.layers == []
    keys = read_saved(pruner.state_dict()["sparse_kernels"]).keys
    assert set(keys) == set(LAYERS)
    assert set(kernels.table.densities.values()) <= {0.0, *DENSITIES}
    kernels.table.densities = dict.fromkeys(kernels.table.densities, 0.0)
    kernels.table.densities[keys["second.weight"][0]] = 0.3
    for number in range(1, 12):
        step(model, optimizer, number)
        density = float(pruner.masks["second.weight"].float().mean())
        assert kernels.layers == (["second.weight"] if density <= 0.3 else [])


def test_the_table_of_a_state_is_not_measured_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, optimizer, pruner, kernels = pruned(True)
    kernels.table = SpeedTable()
    step(model, optimizer, 0)
    state = pruner.state_dict()
    monkeypatch.setattr("flipout.kernels.machine_memory._known", {})
    monkeypatch.setenv("FLIPOUT_CACHE", str(tmp_path))
    monkeypatch.setattr("flipout.kernels.speed_table.highest_density", None)
    model, optimizer, pruner, again = pruned(True)
    pruner.load_state_dict(state)
    step(model, optimizer, 1)
    assert again.table.densities == kernels.table.densities


def test_a_layer_that_is_never_fast_enough_has_density_zero(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = Seen(convolution_of(nn.Conv2d(2, 2, 3), (5, 5)), 1, True, False)
    for faster, expected in ((lambda *_: False, 0.0), (lambda *_: True, DENSITIES[-1])):
        monkeypatch.setattr("flipout.kernels.machine_memory._known", {})
        monkeypatch.setenv("FLIPOUT_CACHE", str(tmp_path / str(expected)))
        monkeypatch.setattr("flipout.kernels.speed_table.Trial.is_faster", faster)
        table = SpeedTable()
        assert table.densities[table.measure(seen, all_gradients=False)] == expected


def test_with_second_chances_all_gradients_are_computed() -> None:
    run = trained(True, steps=4, method=flipout.FlipOut)
    model, pruner, kernels = run.model, run.pruner, run.kernels
    assert not pruner.permanent
    assert kernels.layers == LAYERS
    x, y = batch(99)
    nn.functional.cross_entropy(model(x), y).backward()
    pruned_gradients = [model.get_parameter(name).grad[~mask] for name, mask in pruner.masks.items()]
    assert all(gradient.count_nonzero() > len(gradient) / 2 for gradient in pruned_gradients if len(gradient) > 10)


def test_hooks_of_modules_and_parameters_are_called() -> None:
    run = trained(True)
    model, optimizer = run.model, run.optimizer
    calls = []
    model.third.register_forward_pre_hook(lambda *_: calls.append("before"))
    model.third.register_forward_hook(lambda *_: calls.append("after"))
    model.third.register_full_backward_hook(lambda *_: calls.append("backward"))
    model.second.weight.register_hook(lambda gradient: calls.append("gradient"))
    step(model, optimizer, 50)
    assert sorted(calls) == ["after", "backward", "before", "gradient"]


@pytest.mark.parametrize("images", [0, 1, 2, 40])
@pytest.mark.parametrize("size", [5, 12])
def test_batches_and_images_may_change_their_sizes(images: int, size: int) -> None:
    run = trained(True)
    model = run.model
    model.eval()
    plain = copy.deepcopy(model)
    x, _ = batch(3, images=images, size=size)
    if images:
        torch.testing.assert_close(model(x), plain(x), rtol=1e-4, atol=1e-5)
    else:
        assert model.first(x).shape == plain.first(x).shape
        model.first(x).sum().backward()


def test_other_forms_of_inputs() -> None:
    run = trained(True)
    model = run.model
    model.eval()
    plain = copy.deepcopy(model)
    x, _ = batch(3)
    torch.testing.assert_close(model(x.contiguous(memory_format=torch.channels_last)), plain(x), rtol=1e-4, atol=1e-5)
    with torch.inference_mode():
        torch.testing.assert_close(model(x), plain(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.first(x[0]), plain.first(x[0]), rtol=1e-4, atol=1e-5)
    line, vectors = torch.randn(16, 11), torch.randn(2, 3, 8)
    torch.testing.assert_close(model.line(line), plain.line(line), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.head(vectors), plain.head(vectors), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.head(vectors[0, 0]), plain.head(vectors[0, 0]), rtol=1e-4, atol=1e-5)
    with pytest.raises(RuntimeError):
        model.first(torch.randn(2, 5, 9, 9))


def test_gradients_accumulate_and_may_flow_through_a_layer_twice() -> None:
    run = trained(True)
    model = run.model
    plain = copy.deepcopy(model)
    for network in (model, plain):
        for number in (1, 2):
            x, _ = batch(number)
            inner = network.third(network.third(network.second(network.first(x))))
            inner.square().mean().backward()
    for expected, found in zip(plain.parameters(), model.parameters(), strict=True):
        if expected.grad is not None:
            kept = found != 0
            torch.testing.assert_close(found.grad[kept], expected.grad[kept], rtol=1e-3, atol=1e-5)


def test_an_infinite_weight_is_computed_densely() -> None:
    run = trained(True)
    model = run.model
    plain = copy.deepcopy(model)
    x, _ = batch(1)
    for network in (model, plain):
        kept = network.first.weight.detach().flatten().nonzero()[0]
        network.first.weight.data.flatten()[kept] = torch.inf
    assert torch.equal(model.first(x), plain.first(x)) or torch.equal(model.first(x).isnan(), plain.first(x).isnan())


def test_second_derivatives_are_refused() -> None:
    run = trained(True)
    model = run.model
    x, _ = batch(1)
    with pytest.raises(RuntimeError, match="create_graph"):
        torch.autograd.grad(model(x).sum(), model.first.weight, create_graph=True)


def test_other_types_are_computed_densely_and_that_is_said_once() -> None:
    run = trained(True)
    model, kernels = run.model, run.kernels
    x, _ = batch(1)
    with pytest.warns(SparseKernelsWarning, match="autocast"), torch.autocast("cpu", dtype=torch.bfloat16):
        assert model.first(x).dtype == torch.bfloat16
    model.double()
    with pytest.warns(SparseKernelsWarning, match="float64"):
        assert model(x.double()).dtype == torch.float64
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(x.double())
    assert kernels.layers == LAYERS


def test_a_compiled_model_is_computed_densely_and_that_is_said() -> None:
    model: Any = torch.compile(ConvNet(), backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options: Any = {"sparsity": 0.8, "steps": 10, "compile": False}
    with pytest.warns(SparseKernelsWarning, match="compile"):
        pruner = flipout.GlobalMagnitude(model, optimizer, **options, sparse_kernels=True)
    step(model, optimizer, 0)
    assert pruner.sparse_kernels.layers == []
    pruner.remove()
    with warnings.catch_warnings():
        warnings.simplefilter("error", SparseKernelsWarning)
        flipout.GlobalMagnitude(model, optimizer, **options, sparse_kernels="auto").remove()


def test_a_model_that_is_compiled_or_traced_later_is_computed_densely() -> None:
    run = trained(True)
    model = run.model
    model.eval()
    x, _ = batch(1)
    expected = copy.deepcopy(model)(x)
    assert torch.equal(torch.compile(model, backend="eager")(x), expected)
    exported = torch.export.export(model, (x,)).module()
    assert torch.equal(exported(x), expected)
    graph = fx.symbolic_trace(model)
    torch.testing.assert_close(graph(x), expected, rtol=1e-4, atol=1e-5)
    assert "first" in {node.target for node in graph.graph.nodes if node.op == "call_module"}


def test_layers_that_the_kernels_cannot_compute_stay_as_they_are() -> None:
    class Own(nn.Conv2d):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            return super().forward(2 * input)

    torch.manual_seed(0)
    grouped = nn.Conv2d(8, 8, 3, groups=2)
    circular = nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular")
    model = nn.Sequential(nn.Conv2d(3, 8, 3), grouped, circular, Own(8, 8, 3), nn.Conv3d(1, 1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.8, steps=10, compile=False, sparse_kernels=True)
    assert pruner.attached
    assert [type(layer) for layer in list(model)[1:]] == [nn.Conv2d, nn.Conv2d, Own, nn.Conv3d]
    assert type(model[0]) is not nn.Conv2d


def test_a_dropped_pruner_gives_the_layers_back() -> None:
    model, optimizer, pruner, _, _ = trained(True)
    assert type(model.first) is not nn.Conv2d
    dropped = weakref.ref(pruner)
    del optimizer, pruner, _
    gc.collect()
    assert dropped() is None
    assert type(model.first) is nn.Conv2d


def test_a_shrunk_network_trains_with_sparse_kernels() -> None:
    def shrunk(sparse: bool) -> Any:
        torch.manual_seed(0)
        layers = nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Conv2d(24, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(400, 4)
        model = nn.Sequential(*layers)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        schedule = flipout.OneShot(0.97, 6)
        options: Any = {"sparsity": 0.97, "steps": 6, "schedule": schedule, "compile": False}
        pruner = flipout.GlobalMagnitude(model, optimizer, **options, sparse_kernels=sparse)
        kernels = on_every_density(pruner)
        losses = []
        for number in range(6):
            losses.append(step(model, optimizer, number))
            if number == 2:
                pruner.shrink(batch(0)[0])
                assert len(kernels.layers) == 3 * sparse
        return model, pruner, kernels, losses

    dense, sparse = shrunk(False), shrunk(True)
    assert sparse[0][0].weight.shape == dense[0][0].weight.shape
    assert sparse[0][0].weight.shape[0] < 24
    assert len(sparse[2].layers) == 3
    assert sparse[3] == pytest.approx(dense[3], rel=1e-3)
    sparse[1].expand()
    assert len(sparse[2].layers) == 3
    step(sparse[0], sparse[1].optimizer, 9)


def test_data_parallel_training(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        network = ConvNet()
        model = nn.parallel.DistributedDataParallel(network)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
        schedule = flipout.Geometric(0.8, 12, prunings=4, window=(0.1, 0.7))
        options: Any = {"sparsity": 0.8, "steps": 12, "schedule": schedule, "compile": False}
        pruner = flipout.GlobalMagnitude(model, optimizer, **options, sparse_kernels=True)
        kernels = on_every_density(pruner)
        losses = [step(model, optimizer, number) for number in range(12)]
        assert kernels.layers == LAYERS
        assert losses == pytest.approx(trained(True)[-1], rel=1e-3)
        assert not pruner.lost_zeros()
    finally:
        torch.distributed.destroy_process_group()
