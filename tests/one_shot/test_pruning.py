"""One-shot pruning: exact counts, every kind of unit, and what is left of the network."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import flipout
from flipout.one_shot.layers import Moments, layers_of
from flipout.one_shot.solvers import InverseRoot
from flipout.weights import find_weights

from .networks import Residual, images, nonzero, perceptron, vectors

METHODS: tuple[Any, ...] = ("magnitude", "wanda", "obs")


def distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).detach().square().mean())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scope", ["global", "layer", "output"])
@pytest.mark.parametrize("rounds", [1, 3])
def test_counts_are_exact(method: Any, scope: Any, rounds: int) -> None:
    model = Residual()
    report = flipout.prune(model, images(), sparsity=0.7, method=method, scope=scope, rounds=rounds)
    assert report.prunable == 216 + 576 + 288 + 40
    assert nonzero(model) == report.nonzero == round(report.prunable * 0.3)
    assert {layer.name: layer.kept for layer in report.layers} == {
        f"{name}.weight": int(model.get_parameter(f"{name}.weight").count_nonzero())
        for name in ("stem", "conv", "grouped", "head")
    }


def test_wanda_is_the_highest_of_each_output() -> None:
    model, x = perceptron((12, 16)), torch.cat(vectors())
    (layer,) = model
    assert isinstance(layer, nn.Linear)
    scores = layer.weight.detach().abs() * x.norm(dim=0)
    flipout.prune(model, vectors(), sparsity=0.5, method="wanda")
    kept = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, scores.topk(6).indices, True)
    assert torch.equal(layer.weight != 0, kept)


def test_magnitude_is_global_magnitude() -> None:
    model = perceptron()
    weights = torch.cat([p.detach().abs().flatten() for p in model.parameters() if p.ndim > 1])
    threshold = weights.sort().values[round(len(weights) * 0.6) - 1]
    expected = [p.abs() > threshold for p in model.parameters() if p.ndim > 1]
    flipout.prune(model, vectors(), sparsity=0.6, method="magnitude")
    assert all(
        torch.equal(p != 0, m) for p, m in zip((p for p in model.parameters() if p.ndim > 1), expected, strict=True)
    )


def test_obs_makes_up_for_what_is_pruned() -> None:
    model, x = perceptron(), torch.cat(vectors())
    changes = {}
    for method in METHODS:
        pruned = copy.deepcopy(model)
        report = flipout.prune(pruned, vectors(), sparsity=0.6, method=method, scope="layer")
        changes[method] = distance(pruned(x), model(x))
        for layer in report.layers:
            assert (layer.error < layer.error_masked) if method == "obs" else (layer.error == layer.error_masked)
    assert changes["obs"] < 0.9 * min(changes["wanda"], changes["magnitude"])


def test_errors_are_those_of_the_outputs() -> None:
    model = perceptron((12, 16))
    (layer,) = copy.deepcopy(model)
    x = torch.cat(vectors())
    report = flipout.prune(model, vectors(), sparsity=0.5)
    expected = (model(x) - layer(x)).detach().square().sum() / layer(x).detach().square().sum()
    assert report.layers[0].error == pytest.approx(float(expected), rel=1e-3)


def test_later_layers_see_the_pruned_network() -> None:
    model = perceptron((12, 16, 16))
    flipout.prune(model, vectors(), sparsity=0.5, scope="layer", method="wanda")
    x = model[1](model[0](torch.cat(vectors())))
    original = perceptron((12, 16, 16))[2]
    assert isinstance(original, nn.Linear)
    scores = original.weight.detach().abs() * x.norm(dim=0)
    kept = torch.zeros(scores.numel(), dtype=torch.bool)
    kept[scores.flatten().topk(128).indices] = True
    assert torch.equal(model.get_parameter("2.weight").ne(0), kept.view_as(scores))


@pytest.mark.parametrize("method", METHODS)
def test_patterns(method: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 49, 6))
    x = [torch.randn(16, 4, 9, 9) for _ in range(3)]
    report = flipout.prune(model, x, sparsity=0.5, granularity="2:4", method=method)
    conv, linear = model[0], model[3]
    assert isinstance(conv, nn.Conv2d)
    assert isinstance(linear, nn.Linear)
    assert ((conv.weight != 0).view(8, 1, 4, 9).sum(2) == 2).all()
    assert ((linear.weight != 0).view(6, -1, 4).sum(2) == 2).all()
    assert report.sparsity == 0.5


@pytest.mark.parametrize("granularity", ["kernel", (4, 1), (2, 3)])
@pytest.mark.parametrize("method", ["wanda", "obs"])
def test_blocks(granularity: Any, method: Any) -> None:
    model = Residual()
    report = flipout.prune(model, images(), sparsity=0.5, granularity=granularity, method=method, exclude="head")
    assert abs(report.sparsity - 0.5) < 0.01
    assert report.nonzero == sum(int(model.get_parameter(layer.name).count_nonzero()) for layer in report.layers)
    weight = model.conv.weight.detach().flatten(1)
    if granularity == (4, 1):
        assert set((weight != 0).view(2, 4, -1).sum(1).flatten().tolist()) == {0, 4}
    elif granularity == "kernel":
        assert set((weight != 0).view(8, 8, 9).sum(2).flatten().tolist()) == {0, 9}


def test_channels_are_removed_and_made_up_for() -> None:
    """Inputs that are almost linear combinations of others: without some of them, the others can do their work."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 24), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 4))
    x = vectors(features=6)
    changes = {}
    for method in ("magnitude", "obs"):
        pruned = copy.deepcopy(model)
        report = flipout.prune(pruned, x, sparsity=0.5, granularity="channel", method=method)
        assert 0.5 <= report.sparsity < 0.6
        changes[method] = distance(pruned(torch.cat(x)), model(torch.cat(x)))
        small = flipout.export.compact(pruned, x[0])
        assert sum(p.numel() for p in small.parameters()) < 0.6 * sum(p.numel() for p in model.parameters())
        torch.testing.assert_close(small(x[0]), pruned(x[0]), rtol=1e-4, atol=1e-4)
    assert changes["obs"] < 0.5 * changes["magnitude"]


def test_channels_of_a_network_with_batch_norm_and_groups() -> None:
    model = Residual()
    report = flipout.prune(model, images(), sparsity=0.4, granularity="channel")
    assert report.sparsity >= 0.4
    assert report.nonzero == nonzero(model)
    flipout.export.compact(model, images(1)[0])


def test_a_sparsity_for_each_layer() -> None:
    model = perceptron()
    report = flipout.prune(model, vectors(), sparsity={"4": 0.25, "0": 0.5})
    assert {layer.name: layer.sparsity for layer in report.layers} == {"0.weight": 0.5, "4.weight": 0.25}
    assert model.get_parameter("2.weight").all()


def test_floors_include_and_exclude() -> None:
    model = perceptron()
    report = flipout.prune(model, vectors(), sparsity=0.8, floor=20)
    assert all(layer.kept >= 20 for layer in report.layers)
    report = flipout.prune(perceptron(), vectors(), sparsity=0.8, include="2.weight")
    assert [layer.name for layer in report.layers] == ["2.weight"]


def test_a_criterion_of_the_user() -> None:
    def criterion(weight: Tensor, input_norm: Tensor, hessian_diagonal: Tensor) -> Tensor:
        torch.testing.assert_close(2 * input_norm.square(), hessian_diagonal)
        return weight.abs() * input_norm

    one, other = perceptron(), perceptron()
    report = flipout.prune(one, vectors(), sparsity=0.5, method=criterion)
    assert report.method == "criterion"
    flipout.prune(other, vectors(), sparsity=0.5, method="wanda", scope="global")
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    with pytest.raises(ValueError, match="flips"):
        flipout.prune(one, vectors(), sparsity=0.5, method=flipout.criteria.flip_saliency)


def test_statistics_of_calibration_are_not_there_in_training() -> None:
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"flipout\.prune"):
        flipout.Pruner(model, optimizer, criterion=flipout.criteria.wanda, schedule=flipout.OneShot(0.5, 10, at=1))


def test_fisher_is_that_of_the_loss() -> None:
    model = perceptron()
    batches = [(x, torch.randint(4, (len(x),))) for x in vectors()]
    squares = [torch.zeros_like(p) for p in model.parameters()]
    for x, y in batches:
        grads = torch.autograd.grad(functional.cross_entropy(model(x), y), list(model.parameters()))
        squares = [s + g.square() / 4 for s, g in zip(squares, grads, strict=True)]
    pairs = [(p, s) for p, s in zip(model.parameters(), squares, strict=True) if p.ndim > 1]
    scores = torch.cat([(p.detach().square() * s).flatten() for p, s in pairs])
    flipout.prune(model, batches, sparsity=0.5, method="fisher", loss_fn=functional.cross_entropy)
    kept = torch.cat([(p != 0).flatten() for p, _ in pairs])
    assert scores[kept].min() >= scores[~kept].max()


def test_zeros_stay_zeros() -> None:
    model = perceptron()
    first = model.get_parameter("0.weight")
    with torch.no_grad():
        first[:, ::2] = 0
    zeros = first.eq(0)
    report = flipout.prune(model, vectors(), sparsity=0.6, scope="layer")
    assert not first[zeros].any()
    assert report.sparsity == pytest.approx(0.6, abs=1e-3)


def test_what_is_left_can_be_fine_tuned() -> None:
    model = perceptron()
    report = flipout.prune(model, vectors(), sparsity=0.7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    pruner = flipout.KeepZeros(model, optimizer)
    for x in vectors():
        model(x).square().mean().backward()
        optimizer.step()
    assert pruner.nonzero == nonzero(model) == report.nonzero
    with pytest.raises((RuntimeError, ValueError), match="pruner"):
        flipout.prune(model, vectors(), sparsity=0.8)
    pruner.remove()


@pytest.mark.parametrize(
    ("module", "x"),
    [
        (nn.Conv2d(4, 6, 3, padding=1, stride=2), torch.randn(3, 4, 9, 8)),
        (nn.Conv2d(4, 6, (2, 3), dilation=2, groups=2, padding_mode="circular", padding=1), torch.randn(3, 4, 9, 8)),
        (nn.Conv1d(4, 6, 3, padding="same"), torch.randn(3, 4, 10)),
        (nn.Conv3d(2, 3, 2), torch.randn(2, 2, 4, 4, 4)),
        (nn.Conv2d(4, 6, 3), torch.randn(4, 9, 8)),
        (nn.Linear(5, 3), torch.randn(2, 7, 5)),
    ],
)
def test_inputs_as_columns_times_the_matrix_are_the_outputs(module: nn.Module, x: Tensor) -> None:
    (layer,) = layers_of(module, find_weights(module, None, None, None), 2048)
    (columns,) = layer.columns(module, x, 10**6, torch.Generator())
    outputs = layer.matrix(layer.weight.parameter) @ columns
    expected = functional_without_bias(module, x)
    torch.testing.assert_close(outputs.square().sum(), expected.square().sum())
    (some,) = layer.columns(module, x, 4, torch.Generator())
    assert some.shape[-1] < columns.shape[-1]
    assert torch.equal(layer.tensor(layer.matrix(layer.weight.parameter)), layer.weight.parameter)


def functional_without_bias(module: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        module.bias.zero_()
    out: Tensor = module(x)
    return out


def test_a_transposed_convolution_is_pruned() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.ConvTranspose2d(4, 6, 3, groups=2), nn.ReLU(), nn.Flatten())
    report = flipout.prune(model, [torch.randn(4, 4, 5, 5)], sparsity=0.5)
    assert report.nonzero == 54 == nonzero(model)
    assert report.layers[0].error <= report.layers[0].error_masked


def test_a_wide_layer_has_a_block_diagonal_hessian(monkeypatch: pytest.MonkeyPatch) -> None:
    model = perceptron((12, 16))
    sizes: list[list[int]] = []
    usual = Moments.roots

    def noted(self: Moments, damping: float, orders: Sequence[Tensor] = ()) -> list[InverseRoot]:
        sizes.append([hessian.shape[-1] for hessian in self.hessians])
        return usual(self, damping, orders)

    monkeypatch.setattr(Moments, "roots", noted)
    report = flipout.prune(model, vectors(), sparsity=0.5, block=5)
    assert sizes[0] == [5, 5, 3]  # the last one with the bias
    assert report.sparsity == 0.5
