"""Each method against a slow and obvious implementation."""

from __future__ import annotations

import itertools
import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout
from flipout.methods.hoyer import hoyer_square
from flipout.noise import normal
from tests.helpers import assert_masked, batches, convnet, cross_entropy, make, mlp, sgd, train


def smallest(scores: list[Tensor], keep: int) -> list[Tensor]:
    """Masks that keep the `keep` highest scores."""
    flat = torch.cat([score.flatten() for score in scores])
    mask = torch.ones_like(flat, dtype=torch.bool)
    mask[flat.sort(stable=True).indices[: len(flat) - keep]] = False
    return [part.view_as(score) for part, score in zip(mask.split([s.numel() for s in scores]), scores, strict=True)]


def equal(pruner: flipout.Pruner, masks: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(pruner.masks.values(), masks, strict=True))


def at_first_pruning(method: str, **options: Any) -> tuple[flipout.Pruner, list[list[Tensor]]]:
    """Trains up to and including one pruning at step 10; the weights after each update, before what was pruned went."""
    model = mlp()
    optimizer = sgd(model)
    pruner = make(method, model, optimizer, sparsity=0.5, schedule=flipout.OneShot(0.5, 40, 0.25), **options)
    history: list[list[Tensor]] = []
    settle = pruner._settle

    def record() -> None:
        history.append([layer.weight.detach().clone() for layer in pruner.layers])
        settle()

    pruner._settle = record  # type: ignore[method-assign]
    train(model, optimizer, 10)
    assert pruner.nonzero == 176
    return pruner, history


def test_magnitude() -> None:
    pruner, history = at_first_pruning("magnitude")
    assert equal(pruner, smallest([weight.abs() for weight in history[-1]], 176))


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 3.3])
def test_flipout(p: float) -> None:
    start = [mlp()[i].weight.detach() for i in (0, 2, 4)]
    pruner, history = at_first_pruning("flipout", p=p)
    scores = []
    for number in range(3):
        values = [start[number], *(weights[number] for weights in history)]
        flips = sum((a.sign() != b.sign()).int() for a, b in pairwise(values))
        scores.append(values[-1].abs() ** p / (flips + 1))
    assert equal(pruner, smallest(scores, 176))


@pytest.mark.parametrize("horizon", [4, 100])
def test_magnitude_uncertainty(horizon: int) -> None:
    pruner, history = at_first_pruning("magnitude-uncertainty", lambda_=0.02, horizon=horizon)
    scores = []
    for number in range(3):
        mean, variance = torch.zeros_like(history[0][number]), torch.zeros_like(history[0][number])
        for t, weights in enumerate(history, 1):
            share = 1 / min(t, horizon)
            old = mean
            mean = (1 - share) * mean + share * weights[number]
            variance = (1 - share) * (variance + (old - mean) ** 2) + share * (weights[number] - mean) ** 2
        scores.append(history[-1][number].abs() / (0.02 + variance.sqrt()))
    expected = smallest(scores, 176)
    off = sum(int((a != b).sum()) for a, b in zip(pruner.masks.values(), expected, strict=True))
    assert off <= 2  # rounding may swap two neighbours


def test_random_is_uniform_and_its_seed_matters() -> None:
    counts = torch.zeros(352)
    for seed in range(200):
        model = mlp()
        schedule = flipout.OneShot(0.75, 10, 0)
        pruner = flipout.Random(model, sgd(model), sparsity=0.75, steps=10, schedule=schedule, seed=seed)
        counts += torch.cat([mask.flatten() for mask in pruner.masks.values()])
        pruner.remove()
    assert counts.sum() == 200 * 88
    statistic = float(((counts - 50) ** 2 / (200 * 0.25 * 0.75)).sum())  # about chi-square with 352 degrees
    assert 250 < statistic < 480


def test_random_draws_anew_at_each_pruning() -> None:
    model = mlp()
    pruner = flipout.Random(model, sgd(model), sparsity=0.75, steps=10)
    first = pruner.statistics["uniform"]["0.weight"]
    assert torch.equal(first, pruner.statistics["uniform"]["0.weight"])
    train(model, pruner.optimizer, 1)
    assert not torch.equal(first, pruner.statistics["uniform"]["0.weight"])


# SNIP


@pytest.mark.parametrize("rounds", [1, 4])
def test_snip(rounds: int) -> None:
    data = list(batches(3, seed=2))
    reference = mlp()
    weights = [reference[i].weight for i in (0, 2, 4)]
    masks = [torch.ones_like(weight, dtype=torch.bool) for weight in weights]
    for i in range(1, rounds + 1):
        reference.zero_grad()
        for x, y in data:
            cross_entropy(reference(x), y).backward()
        scores = [torch.where(mask, (w.detach() * w.grad).abs(), -1.0) for w, mask in zip(weights, masks, strict=True)]
        masks = smallest(scores, round(352 * 0.1 ** (i / rounds)))
        with torch.no_grad():
            for weight, mask in zip(weights, masks, strict=True):
                weight *= mask
    model = mlp()
    pruner = flipout.SNIP(
        model, sgd(model), sparsity=0.9, steps=10, batches=iter(data), loss_fn=cross_entropy, rounds=rounds
    )
    assert pruner.nonzero == 35
    assert len(pruner.events) == rounds
    assert equal(pruner, masks)
    assert_masked(pruner)


def test_snip_leaves_no_trace() -> None:
    model = convnet()
    x, y = next(batches(1, shape=(1, 6, 6)))
    cross_entropy(model(x), y).backward()
    gradients = {name: (p.grad, p.grad.clone()) for name, p in model.named_parameters() if p.grad is not None}
    buffers = {name: (buffer, buffer.clone()) for name, buffer in model.named_buffers()}
    biases = {name: p.detach().clone() for name, p in model.named_parameters() if "bias" in name}
    state = torch.get_rng_state()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4, shuffle=True)
    flipout.SNIP(model, sgd(model), sparsity=0.5, steps=10, batches=loader, loss_fn=cross_entropy, rounds=3)
    assert torch.equal(state, torch.get_rng_state())
    for name, parameter in model.named_parameters():
        assert parameter.grad is gradients[name][0]
        assert torch.equal(*gradients[name])
    for name, buffer in model.named_buffers():
        assert buffer is buffers[name][0]
        assert torch.equal(*buffers[name]), name
    assert all(torch.equal(dict(model.named_parameters())[name], bias) for name, bias in biases.items())
    assert model.training


def test_snip_leaves_no_trace_of_iterators_and_of_buffers_that_are_replaced() -> None:
    class Average(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(12))

        def forward(self, x: Tensor) -> Tensor:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            return x - self.mean

    model = nn.Sequential(Average(), mlp())
    buffer = model[0].mean
    x, y = next(batches(1))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4, shuffle=True)
    few = itertools.islice(loader, 2)  # draws from torch's random state when it starts, and again on the way
    state = torch.get_rng_state()
    flipout.SNIP(model, sgd(model), sparsity=0.5, steps=10, batches=few, loss_fn=cross_entropy)
    assert torch.equal(state, torch.get_rng_state())
    assert model[0].mean is buffer
    assert not buffer.any()


# Hoyer-Square


def test_hoyer_square_against_its_formula() -> None:
    model = mlp()
    pruner = flipout.HoyerSquare(model, sgd(model), steps=100, lambda_=0.3)
    expected = 0.0
    for i in (0, 2, 4):
        values = [float(v) for v in model[i].weight.detach().flatten()]
        expected += 0.3 * sum(map(abs, values)) ** 2 / sum(v * v for v in values)
    penalty = pruner.penalty()
    assert float(penalty.detach()) == pytest.approx(expected, rel=1e-5)
    penalty.backward()
    weight = model[0].weight.detach().double().requires_grad_()
    (0.3 * weight.abs().sum() ** 2 / (weight**2).sum()).backward()
    assert model[0].weight.grad is not None
    assert weight.grad is not None
    torch.testing.assert_close(model[0].weight.grad, weight.grad.float())


def test_hoyer_square_of_a_dead_layer_is_zero_with_a_finite_gradient() -> None:
    weight = torch.zeros(3, 3, requires_grad=True)
    value = hoyer_square(weight)
    value.backward()
    assert float(value.detach()) == 0
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.zeros(3, 3))


def test_hoyer_square_prunes_below_its_threshold_and_then_stops_pulling() -> None:
    model = mlp()
    optimizer = sgd(model, lr=0.05)
    pruner = flipout.HoyerSquare(model, optimizer, steps=40, lambda_=1e-3, threshold=0.05)
    assert isinstance(pruner, flipout.HoyerSquare)
    assert str(pruner.plan()).endswith("by threshold")
    seen: list[tuple[int, int]] = []
    settle = pruner._settle

    def record() -> None:
        settle()
        seen.append((pruner.step, sum(int((layer.weight.abs() >= 0.05).sum()) for layer in pruner.layers)))

    pruner._settle = record  # type: ignore[method-assign]
    train(model, optimizer, 27, penalty=pruner.penalty)
    assert float(pruner.penalty().detach()) > 0
    assert pruner.sparsity == 0
    train(model, optimizer, 40, skip=27, penalty=pruner.penalty)
    assert [event.step for event in pruner.events] == [28]
    assert pruner.nonzero == dict(seen)[28] < 352
    assert float(pruner.penalty()) == 0
    assert not pruner.penalty().requires_grad


def test_hoyer_square_to_an_exact_sparsity_and_with_a_floor() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.HoyerSquare(model, optimizer, sparsity=0.9, steps=40)
    train(model, optimizer, 40, penalty=pruner.penalty)
    assert pruner.nonzero == 35
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.HoyerSquare(model, optimizer, steps=40, threshold=100.0, floor=2)
    train(model, optimizer, 40, penalty=pruner.penalty)
    assert [layer.kept for layer in pruner.layers] == [2, 2, 2]


@pytest.mark.parametrize("options", [{"lambda_": -1.0}, {"lambda_": math.nan}, {"threshold": -1.0}, {"fine_tune": 1.5}])
def test_hoyer_square_with_nonsense(options: dict[str, float]) -> None:
    model = mlp()
    with pytest.raises(ValueError, match=next(iter(options))):
        flipout.HoyerSquare(model, sgd(model), steps=10, **options)


# Deep-R


@pytest.mark.parametrize("temperature", [None, 1e-4])
def test_deep_r_step_by_step(temperature: float | None) -> None:
    """The paper's update, connection by connection, for plain SGD."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    initial = [model[i].weight.detach().clone() for i in (0, 2, 4)]
    pruner = flipout.DeepR(model, optimizer, sparsity=0.6, steps=30, l1=0.01, temperature=temperature, seed=4)
    assert isinstance(pruner, flipout.DeepR)
    assert pruner.nonzero == 141
    assert all(torch.equal(s, w.sign().to(torch.int8)) for s, w in zip(pruner.signs.values(), initial, strict=True))
    T = 0.5 * 0.01**2 / 18 if temperature is None else temperature  # noqa: N806
    rewired = 0
    for step, (x, y) in enumerate(batches(30)):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        before = [layer.weight.detach().clone() for layer in pruner.layers]
        masks = [layer.mask.clone() for layer in pruner.layers]
        grads = [layer.weight.grad.clone() for layer in pruner.layers if layer.weight.grad is not None]
        optimizer.step()
        dormant_now = 0
        for number, layer in enumerate(pruner.layers):
            sign = pruner.signs[layer.name]
            theta = before[number] * sign  # at least 0 where a connection is active
            noise = normal(theta.shape, seed=4, step=step, tensor=layer.number) * sign
            moved = theta - 0.5 * (grads[number] * sign + 0.01) - math.sqrt(2 * 0.5 * T) * noise
            active = masks[number] & (moved >= 0)
            dormant_now += int((masks[number] & (moved < 0)).sum())
            assert not (active & ~layer.mask).any()
            torch.testing.assert_close(layer.weight.detach()[active], (moved * sign)[active], rtol=1e-4, atol=1e-6)
            woken = layer.mask & ~active
            assert not layer.weight.detach()[woken].any()
        rewired += dormant_now
        assert pruner.nonzero == 141
        assert_masked(pruner)
    assert rewired > 30


def test_deep_r_wakes_any_dormant_connection_alike() -> None:
    model = mlp()
    pruner = flipout.DeepR(model, sgd(model), sparsity=0.5, steps=10)
    assert isinstance(pruner, flipout.DeepR)
    start = [layer.mask.clone() for layer in pruner.layers]
    counts = torch.zeros(352)
    for step in range(400):
        pruner._progress.step = step
        pruner._wake(pruner.layers, 44)
        woken = [layer.mask & ~before for layer, before in zip(pruner.layers, start, strict=True)]
        counts += torch.cat([mark.flatten() for mark in woken])
        for layer, before in zip(pruner.layers, start, strict=True):
            layer.mask.copy_(before)
    dormant = ~torch.cat([mask.flatten() for mask in start])
    assert counts[dormant].sum() == 400 * 44
    assert not counts[~dormant].any()
    statistic = float(((counts[dormant] - 100) ** 2 / (400 * 0.25 * 0.75)).sum())  # chi-square, 176 degrees
    assert 100 < statistic < 260


@pytest.mark.parametrize(("options", "least"), [({"scope": "layer"}, [77, 51, 13]), ({"floor": 10}, [10, 10, 10])])
def test_deep_r_keeps_what_each_layer_is_owed(options: dict[str, Any], least: list[int]) -> None:
    model = mlp()
    optimizer = sgd(model, lr=0.5)
    pruner = flipout.DeepR(model, optimizer, sparsity=0.6, steps=30, l1=0.05, **options)

    def check() -> None:
        assert pruner.nonzero == 141
        assert all(layer.kept >= n for layer, n in zip(pruner.layers, least, strict=True))

    train(model, optimizer, 30, after=check)


def test_deep_r_gives_a_sign_to_what_starts_at_zero() -> None:
    model = mlp()
    with torch.no_grad():
        model[0].weight.zero_()
    pruner = flipout.DeepR(model, sgd(model), sparsity=0.5, steps=10)
    assert isinstance(pruner, flipout.DeepR)
    signs = pruner.signs["0.weight"]
    assert set(signs.unique().tolist()) == {-1, 1}
    with pytest.raises(ValueError, match="l1 is -1"):
        flipout.DeepR(model, sgd(model), sparsity=0.5, steps=10, l1=-1.0)


def test_deep_r_does_not_hide_a_nan() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.DeepR(model, optimizer, sparsity=0.5, steps=10)
    for layer in pruner.layers:
        layer.weight.grad = torch.zeros_like(layer.weight)
    model[2].weight.grad = torch.full_like(model[2].weight, float("nan"))
    with pytest.raises(FloatingPointError, match=r"2\.weight has NaN or infinite weights"):
        optimizer.step()
    with pytest.raises(ValueError, match="temperature= instead of noise="):
        flipout.METHODS["deep-r"](mlp(), sgd(mlp()), sparsity=0.5, steps=10, noise=1.0)


def test_deep_r_pulls_to_zero_also_when_the_optimizer_maximizes() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, maximize=True)
    pruner = flipout.DeepR(model, optimizer, sparsity=0.5, steps=10, l1=0.1, temperature=0.0)
    before = sum(float(layer.weight.detach().abs().sum()) for layer in pruner.layers)
    for layer in pruner.layers:
        layer.weight.grad = torch.zeros_like(layer.weight)
    optimizer.step()
    assert sum(float(layer.weight.detach().abs().sum()) for layer in pruner.layers) < before


# Lottery


@pytest.mark.parametrize("rewind_to", [0, 3, None])
def test_lottery(rewind_to: int | None) -> None:
    model = convnet()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    rounds, steps = 3, 40
    pruner = flipout.Lottery(model, optimizer, sparsity=0.9, steps=steps, rounds=rounds, rewind_to=rewind_to)
    assert [pruning.step for pruning in pruner.plan()] == [10, 20, 30]
    early: dict[str, Tensor] = {}

    def snapshot() -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in model.state_dict().items()}

    if rewind_to == 0:
        early = snapshot()
    torch.manual_seed(3)
    for x, y in batches(steps, shape=(1, 6, 6)):
        masks = {name: mask.clone() for name, mask in pruner.masks.items()}
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        if pruner.step == rewind_to:
            early = snapshot()
        if pruner.step in (10, 20, 30):
            if rewind_to is None:
                assert optimizer.state
                continue
            assert not optimizer.state
            for name, tensor in model.state_dict().items():
                mask = pruner.masks.get(name, torch.ones_like(tensor, dtype=torch.bool))
                assert torch.equal(tensor, torch.where(mask, early[name], torch.zeros_like(tensor))), name
            assert all(not (pruner.masks[name] & ~masks[name]).any() for name in masks)
    assert pruner.nonzero == round(pruner.prunable * 0.1)
    assert_masked(pruner)


def test_lottery_prunes_the_trained_weights_not_the_early_ones() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.Lottery(model, optimizer, sparsity=0.5, steps=20, rounds=1)
    reference = mlp()
    train(reference, sgd(reference), 10)
    train(model, optimizer, 10)
    assert equal(pruner, smallest([reference[i].weight.detach().abs() for i in (0, 2, 4)], 176))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds is 0"),
        ({"rewind_to": 7}, "before the first pruning, which is at 7"),
        ({"steps": 5}, "too few"),
    ],
)
def test_lottery_with_nonsense(options: dict[str, int], message: str) -> None:
    model = mlp()
    with pytest.raises(ValueError, match=message):
        flipout.Lottery(model, sgd(model), **{"sparsity": 0.9, "steps": 40, **options})  # type: ignore[arg-type]


# No pruning


def test_dense_changes_nothing() -> None:
    plain, model = mlp(), mlp()
    train(plain, sgd(plain), 20)
    optimizer = sgd(model)
    pruner = flipout.Dense(model, optimizer, sparsity=0.99, steps=20)
    train(model, optimizer, 20)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))
    assert (pruner.nonzero, pruner.sparsity, pruner.finished) == (352, 0.0, True)
    assert str(pruner.plan()) == "no pruning"


def test_keep_zeros() -> None:
    model = mlp()
    with torch.no_grad():
        for layer in (0, 2, 4):
            model[layer].weight[model[layer].weight.abs() < 0.1] = 0
    kept = [model[i].weight.detach() != 0 for i in (0, 2, 4)]
    optimizer = sgd(model)
    pruner = flipout.KeepZeros(model, optimizer)
    train(model, optimizer, 20, after=lambda: assert_masked(pruner))
    assert equal(pruner, kept)
    assert 0 < pruner.sparsity < 1


def test_noise_on_any_method() -> None:
    for method in ("magnitude", "random", "snip", "hoyer-square", "magnitude-uncertainty", "lottery", "dense"):
        results = []
        for noise in (None, 1.0):
            model = mlp()
            optimizer = sgd(model)
            make(method, model, optimizer, noise=noise)
            train(model, optimizer, 3)
            results.append(model[0].weight.detach().clone())
        assert not torch.equal(*results), method


def test_the_names_of_the_methods() -> None:
    assert set(flipout.METHODS) == {
        "flipout",
        "magnitude",
        "random",
        "snip",
        "hoyer-square",
        "magnitude-uncertainty",
        "deep-r",
        "lottery",
        "dense",
        "keep-zeros",
    }
    assert all(isinstance(method, type) and issubclass(method, flipout.Pruner) for method in flipout.METHODS.values())
