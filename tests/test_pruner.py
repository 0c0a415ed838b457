"""One training run, exactly the sparsity asked for, and a model that is not touched."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout
from flipout.noise import normal
from tests.helpers import assert_masked, batches, convnet, cross_entropy, make, mlp, sgd, train

OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9, weight_decay=5e-4),
    "nesterov": lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9, nesterov=True),
    "sgd-foreach": lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9, weight_decay=5e-4, foreach=True),
    "sgd-fused": lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9, weight_decay=5e-4, fused=True),
    "adam": lambda m: torch.optim.Adam(m.parameters(), 0.01, weight_decay=5e-4),
    "adam-foreach": lambda m: torch.optim.Adam(m.parameters(), 0.01, foreach=True),
    "adam-fused": lambda m: torch.optim.Adam(m.parameters(), 0.01, fused=True),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), 0.01),
    "adamw-amsgrad-fused": lambda m: torch.optim.AdamW(m.parameters(), 0.01, amsgrad=True, fused=True),
    "rmsprop": lambda m: torch.optim.RMSprop(m.parameters(), 0.01, momentum=0.5, centered=True),
    "adagrad": lambda m: torch.optim.Adagrad(m.parameters(), 0.01),
    "groups": lambda m: torch.optim.SGD(
        [{"params": [p], "lr": 0.05 * (i + 1)} for i, p in enumerate(m.parameters())], momentum=0.9
    ),
}


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
@pytest.mark.parametrize("method", ["flipout", "magnitude"])
def test_exact_and_zero_after_every_step(method: str, optimizer_name: str) -> None:
    model = mlp()
    optimizer = OPTIMIZERS[optimizer_name](model)
    pruner = make(method, model, optimizer, sparsity=0.93, steps=40)
    kept = {pruning.step: pruning.nonzero for pruning in pruner.plan()}
    expected = pruner.prunable

    def check() -> None:
        nonlocal expected
        expected = kept.get(pruner.step, expected)
        assert pruner.nonzero == expected
        assert_masked(pruner)

    train(model, optimizer, 40, after=check)
    assert pruner.finished
    assert pruner.nonzero == round(pruner.prunable * 0.07) == 25
    assert pruner.sparsity == 1 - 25 / 352


@pytest.mark.parametrize("method", [name for name in flipout.METHODS if name not in ("dense", "keep-zeros")])
@pytest.mark.parametrize("scope", ["global", "layer"])
def test_every_method_ends_at_exactly_the_sparsity(method: str, scope: str) -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = make(method, model, optimizer, scope=scope)
    assert isinstance(pruner, flipout.Pruner)
    train(model, optimizer, 40, after=lambda: assert_masked(pruner))
    assert pruner.nonzero == 35 == round(pruner.prunable * 0.1)
    if scope == "layer":
        assert [layer.kept for layer in pruner.layers] == [19, 13, 3]


def test_noise_and_masks_reach_the_update() -> None:
    """One step of plain SGD, by hand."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = flipout.FlipOut(model, optimizer, sparsity=0.5, steps=10, noise=0.7, seed=3)
    train(model, optimizer, 5)
    x, y = next(batches(1, seed=4))
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    expected = {}
    names = [name for name, _ in model.named_parameters()]
    for name, mask in pruner.masks.items():
        weight = dict(model.named_parameters())[name]
        assert weight.grad is not None
        grad = torch.where(mask, weight.grad, 0.0)
        sigma = grad.norm() / grad.numel() ** 0.5
        noise = 0.7 * sigma * normal(grad.shape, seed=3, step=5, tensor=names.index(name))
        expected[name] = torch.where(mask, weight.detach() - 0.1 * (grad + noise), 0.0)
    optimizer.step()
    for name, weight in expected.items():
        torch.testing.assert_close(dict(model.named_parameters())[name].detach(), weight)


def test_noise_is_the_same_for_equal_settings_and_not_torchs() -> None:
    def run(torch_seed: int, **options: Any) -> Tensor:
        model = mlp()
        optimizer = sgd(model)
        flipout.FlipOut(model, optimizer, sparsity=0.5, steps=20, **options)
        torch.manual_seed(torch_seed)
        train(model, optimizer, 20)
        return model[0].weight.detach()

    assert torch.equal(run(1), run(2))
    assert torch.equal(run(1), run(1, noise=flipout.GradientNoise(1.0, "gradient", seed=0)))
    assert not torch.equal(run(1), run(1, seed=5))
    assert not torch.equal(run(1), run(1, noise=0))
    assert torch.equal(run(1, noise=0), run(1, noise=None))


def test_the_closure_sees_its_own_gradients_pruned_and_noisy() -> None:
    def run(with_closure: bool) -> list[Tensor]:
        model = mlp()
        optimizer = sgd(model)
        pruner = flipout.FlipOut(model, optimizer, sparsity=0.9, steps=30)
        losses = []
        for number, (x, y) in enumerate(batches(30)):

            def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
                optimizer.zero_grad()
                loss = cross_entropy(model(x), y)
                loss.backward()
                return loss

            if not with_closure:
                closure()
                optimizer.step()
            elif number % 2:
                losses.append(optimizer.step(closure))
            else:
                losses.append(optimizer.step(closure=closure))
            assert_masked(pruner)
        assert all(isinstance(loss, Tensor) for loss in losses)
        assert pruner.step == 30
        return [parameter.detach() for parameter in model.parameters()]

    for one, other in zip(run(True), run(False), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("relative_to", ["gradient", "weight"])
def test_a_gradient_scaler_changes_nothing_and_skipped_steps_count_nothing(
    fused: bool, unscale: bool, relative_to: Any
) -> None:
    """A run under a scaler, with two steps that overflow, against the same run without them and it."""

    def run(scaled: bool) -> tuple[flipout.Pruner, nn.Module]:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.5, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000, backoff_factor=0.5)
        noise = flipout.GradientNoise(0.5, relative_to)

        def criterion(weight: Tensor, flips: Tensor, grad: Tensor) -> Tensor:
            return weight.abs() / (flips + 1) + grad.abs()

        pruner = flipout.Pruner(model, optimizer, criterion=criterion, schedule=flipout.Geometric(0.8, 30), noise=noise)
        for number, (x, y) in enumerate(batches(32)):
            overflow = number in (4, 20)
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            if not scaled:
                if not overflow:
                    loss.backward()
                    optimizer.step()
                continue
            if overflow:
                loss = loss * float("inf")
            before = [parameter.detach().clone() for parameter in model.parameters()]
            scaler.scale(loss).backward()
            if unscale:
                scaler.unscale_(optimizer)
                if not overflow:
                    nn.utils.clip_grad_norm_(model.parameters(), 1e6)
            scaler.step(optimizer)
            scaler.update()
            if overflow:
                assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
            assert_masked(pruner)
        return pruner, model

    with_scaler, scaled_model = run(True)
    without, plain_model = run(False)
    assert with_scaler.step == without.step == 30
    assert with_scaler.nonzero == without.nonzero == 70
    for a, b in zip(scaled_model.parameters(), plain_model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    for name in without.masks:
        torch.testing.assert_close(with_scaler.statistics["grad"][name], without.statistics["grad"][name])
        assert torch.equal(with_scaler.statistics["flips"][name], without.statistics["flips"][name])


def test_accumulation_clipping_and_a_learning_rate_schedule() -> None:
    model = mlp()
    optimizer = OPTIMIZERS["adamw"](model)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    pruner = flipout.FlipOut(model, optimizer, sparsity=0.9, steps=20)
    for number, (x, y) in enumerate(batches(80), 1):
        (cross_entropy(model(x), y) / 4).backward()
        if number % 4 == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            rates.step()
            optimizer.zero_grad()
            assert_masked(pruner)
    assert pruner.step == 20
    assert pruner.nonzero == 35


def test_the_model_is_not_touched() -> None:
    model = convnet()
    optimizer = sgd(model)
    modules = list(model.modules())
    identities = [id(parameter) for parameter in model.parameters()]
    keys = list(model.state_dict())
    hooks = [(m._forward_hooks, m._forward_pre_hooks, m._backward_hooks) for m in model.modules()]
    before = [list(vars(module)) for module in modules]
    pruner = flipout.FlipOut(model, optimizer, sparsity=0.9, steps=20)
    train(model, optimizer, 20, shape=(1, 6, 6))
    assert list(model.modules()) == modules
    assert [id(parameter) for parameter in model.parameters()] == identities
    assert list(model.state_dict()) == keys
    assert [list(vars(module)) for module in modules] == before
    assert all(not any(kinds) for kinds in hooks)

    x, _ = next(batches(1, shape=(1, 6, 6)))
    model.eval()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), model(x))
        train(other, sgd(other), 3, shape=(1, 6, 6))  # a copy trains on its own, unpruned
        assert int((other[0].weight != 0).sum()) > pruner.layers[0].kept


def test_a_compiled_model() -> None:
    plain, inner = mlp(), mlp()
    compiled = torch.compile(inner, backend="eager")
    assert isinstance(compiled, nn.Module)
    masks = []
    for model in (plain, compiled):
        optimizer = sgd(model)
        pruner = flipout.FlipOut(model, optimizer, sparsity=0.9, steps=20)
        train(model, optimizer, 20)
        assert_masked(pruner)
        masks.append(pruner.masks)
    assert list(masks[0]) == list(masks[1]) == ["0.weight", "2.weight", "4.weight"]
    assert all(torch.equal(masks[0][name], masks[1][name]) for name in masks[0])


def test_moving_averages_of_the_weights() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.FlipOut(model, optimizer, sparsity=0.9, steps=20)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    train(model, optimizer, 20, after=lambda: average.update_parameters(model))
    assert not torch.equal(average.module[0].weight != 0, pruner.masks["0.weight"])
    pruner.apply_to(average)
    assert sum(int((average.module[i].weight != 0).sum()) for i in (0, 2, 4)) == 35
    with pytest.raises(ValueError, match="no parameter"):
        pruner.apply_to(nn.Linear(2, 2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 4.0])
def test_other_precisions_and_powers(dtype: torch.dtype, p: float) -> None:
    """Each pruning takes the lowest |w|^p / (flips + 1), computed here by sorting."""
    torch.manual_seed(0)
    weights = nn.ParameterList([nn.Parameter((torch.randn(shape) * 1e-3).to(dtype)) for shape in [(9, 7), (5, 4)]])
    optimizer = torch.optim.SGD(weights, lr=1e-3)
    pruner = flipout.FlipOut(weights, optimizer, sparsity=0.8, steps=20, p=p, include="*", noise=0.0)
    scores: list[Tensor] = []
    original = pruner._prune

    def prune(pruning: Any) -> None:
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        flips = list(pruner.statistics["flips"].values())
        scores[:] = [w.detach().to(wide).abs().pow(p) / (f + 1) for w, f in zip(weights, flips, strict=True)]
        alive = [mask.clone() for mask in pruner.masks.values()]
        original(pruning)
        ranked = sorted(
            (float(scores[t].flatten()[i]), t, i)
            for t in range(2)
            for i in range(scores[t].numel())
            if alive[t].flatten()[i]
        )
        gone = {(t, i) for _, t, i in ranked[: len(ranked) - pruning.nonzero]}
        for t, mask in enumerate(pruner.masks.values()):
            for i, keeps in enumerate(mask.flatten().tolist()):
                assert keeps == (bool(alive[t].flatten()[i]) and (t, i) not in gone)

    pruner._prune = prune  # type: ignore[method-assign]
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator).to(dtype)
        optimizer.step()
        assert_masked(pruner)
    assert pruner.nonzero == 17


def test_ones_own_criterion_of_one_expression() -> None:
    model = mlp()
    optimizer = sgd(model)
    weights = torch.cat([model[i].weight.detach().flatten() for i in (0, 2, 4)])
    schedule = flipout.OneShot(0.75, 40, at=0)
    pruner = flipout.Pruner(model, optimizer, criterion=lambda weight: -weight.abs(), schedule=schedule)
    kept = torch.cat([mask.flatten() for mask in pruner.masks.values()])
    assert int(kept.sum()) == 88
    assert weights[kept].abs().max() <= weights[~kept].abs().min()
    train(model, optimizer, 40)
    assert pruner.nonzero == 88


def test_floors_hold_while_the_total_stays_exact() -> None:
    for floor, least in ((5, [5, 5, 5]), (0.1, [20, 13, 4])):
        model = mlp()
        optimizer = sgd(model)
        pruner = flipout.FlipOut(model, optimizer, sparsity=0.88, steps=40, floor=floor)

        def check(pruner: flipout.Pruner = pruner, least: list[int] = least) -> None:
            assert all(layer.kept >= n for layer, n in zip(pruner.layers, least, strict=True))

        train(model, optimizer, 40, after=check)
        assert pruner.nonzero == 42


def test_a_layer_that_dies_is_named_once() -> None:
    model = mlp()
    with torch.no_grad():
        model[4].weight *= 1e-6
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.9, steps=20)
    with pytest.warns(flipout.DeadLayerWarning, match=r"4\.weight lost its last weight at step \d+.*floor=") as caught:
        train(model, optimizer, 20)
    assert len(caught) == 1
    assert pruner.layers[2].kept == 0
    assert pruner.nonzero == 35


def test_frozen_tied_unused_and_empty_weights() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(12, 12, bias=False)
            self.again = nn.Linear(12, 12, bias=False)
            self.again.weight = self.first.weight
            self.frozen = nn.Linear(12, 12)
            self.frozen.weight.requires_grad_(False)
            self.unused = nn.Linear(5, 5)
            self.empty = nn.Linear(0, 3)
            self.head = nn.Linear(12, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.frozen(self.again(self.first(x).relu()).relu())
            return self.head(x) + self.empty(x[:, :0]).sum()

    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="zero-element"):
        model = Net()
    frozen = model.frozen.weight.detach().clone()
    optimizer = sgd(model)
    pruner = flipout.FlipOut(model, optimizer, sparsity=0.5, steps=20, floor=1)
    assert list(pruner.masks) == ["first.weight", "unused.weight", "empty.weight", "head.weight"]
    assert pruner.prunable == 144 + 25 + 0 + 48
    train(model, optimizer, 20)
    assert_masked(pruner)
    assert pruner.nonzero == 108
    assert model.again.weight is model.first.weight
    assert torch.equal(model.frozen.weight, frozen)
    assert not pruner.statistics["flips"]["unused.weight"].any()
    assert "0 x" in str(pruner.summary()) or "3 x 0" in str(pruner.summary())


def test_a_tied_embedding_is_an_embedding() -> None:
    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(9, 6)
            self.body = nn.Linear(6, 6)
            self.head = nn.Linear(6, 9, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.body(self.embed(x)))
            return out

    model = Language()
    pruner = flipout.FlipOut(model, sgd(model), sparsity=0.5, steps=10)
    assert list(pruner.masks) == ["body.weight"]
    pruner.remove()
    assert list(flipout.FlipOut(model, sgd(model), sparsity=0.5, steps=10, include="embed").masks) == ["embed.weight"]


def test_two_pruners_share_an_optimizer_if_not_their_weights() -> None:
    model = mlp()
    optimizer = sgd(model)
    one = flipout.FlipOut(model, optimizer, sparsity=0.5, steps=20, include="0")
    other = flipout.GlobalMagnitude(model, optimizer, sparsity=0.75, steps=20, exclude="0")
    train(model, optimizer, 20)
    assert (one.nonzero, other.nonzero) == (96, 40)
    assert_masked(one)
    assert_masked(other)


def test_removed_it_leaves_the_zeros_and_the_loop_alone() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.FlipOut(model, optimizer, sparsity=0.9, steps=20)
    train(model, optimizer, 20)
    pruner.remove()
    pruner.remove()
    assert sum(int((layer.weight != 0).sum()) for layer in pruner.layers) == 35
    train(model, optimizer, 2)
    assert sum(int((layer.weight != 0).sum()) for layer in pruner.layers) > 35
    assert pruner.step == 20
    flipout.KeepZeros(model, optimizer)


def test_a_failed_construction_leaves_nothing_behind() -> None:
    model = mlp()
    optimizer = sgd(model)
    with pytest.raises(ValueError, match="p is -1"):
        flipout.FlipOut(model, optimizer, sparsity=0.5, steps=10, p=-1)
    with pytest.raises(ValueError, match="batches is empty"):
        flipout.SNIP(model, optimizer, sparsity=0.5, steps=10, batches=[], loss_fn=cross_entropy)
    nan = lambda output, target: cross_entropy(output, target) * float("nan")  # noqa: E731
    with pytest.raises(FloatingPointError, match=r"0\.weight has NaN"):
        flipout.SNIP(model, optimizer, sparsity=0.5, steps=10, batches=batches(1), loss_fn=nan)
    with warnings.catch_warnings():
        warnings.simplefilter("error", flipout.DeadLayerWarning)
        at_once = flipout.OneShot(0.9, 10, at=0)
        with pytest.raises(flipout.DeadLayerWarning):
            flipout.Pruner(model, optimizer, criterion=lambda weight: weight * 0, schedule=at_once)
    assert not optimizer._optimizer_step_pre_hooks
    assert all((layer != 0).all() for layer in model.parameters())
    flipout.FlipOut(model, optimizer, sparsity=0.5, steps=10)


@pytest.mark.parametrize("schedule", ["paper", flipout.Cubic, partial(flipout.Geometric, prunings=3), None])
def test_ways_to_give_a_schedule(schedule: Any) -> None:
    for method in ("flipout", "magnitude", "random", "magnitude-uncertainty"):
        model = mlp()
        optimizer = sgd(model)
        pruner = make(method, model, optimizer, schedule=schedule)
        train(model, optimizer, 40)
        assert pruner.nonzero == 35
    model = mlp()
    exact = flipout.Geometric.paper(0.9, 40)
    assert flipout.FlipOut(model, sgd(model), sparsity=0.9, steps=40, schedule=exact).schedule is exact


@pytest.mark.parametrize("method", sorted(flipout.METHODS))
@pytest.mark.parametrize("change", ["float64", "bfloat16", "channels_last"])
def test_every_method_in_other_types_and_layouts(method: str, change: str) -> None:
    model = convnet().to(memory_format=torch.channels_last) if change == "channels_last" else convnet()
    dtype = {"float64": torch.float64, "bfloat16": torch.bfloat16}.get(change, torch.float32)
    model = model.to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    data = [(x.to(dtype), y) for x, y in batches(20, shape=(1, 6, 6))]
    options = {"batches": data[:1], "loss_fn": cross_entropy} if method == "snip" else {}
    pruner = flipout.METHODS[method](model, optimizer, sparsity=0.8, steps=20, **options)
    for x, y in data:
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        if isinstance(pruner, flipout.HoyerSquare):
            loss = loss + pruner.penalty()
        loss.backward()
        optimizer.step()
        assert_masked(pruner)
    if method not in ("dense", "keep-zeros"):
        assert pruner.nonzero == round(pruner.prunable * 0.2)


def test_a_high_power_ranks_as_it_should() -> None:
    """With no flips the ranking is the magnitude's, whatever p; in float32 most scores would be 0."""
    masks = []
    for p in (2.0, 60.0):
        model = mlp()
        schedule = flipout.OneShot(0.5, 4, at=0)
        masks.append(flipout.FlipOut(model, sgd(model), sparsity=0.5, steps=4, p=p, noise=0, schedule=schedule).masks)
    assert all(torch.equal(masks[0][name], masks[1][name]) for name in masks[0])


def test_two_pruners_on_one_model_make_different_noise() -> None:
    model = nn.Sequential(nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = [layer.weight.detach().clone() for layer in model]
    for part in ("0", "1"):
        flipout.FlipOut(model, optimizer, sparsity=0.0, steps=10, include=part)
    for layer in model:
        layer.weight.grad = torch.ones(5, 5)
    optimizer.step()
    moved = [old - layer.weight.detach() for old, layer in zip(before, model, strict=True)]
    assert not torch.allclose(*moved)


def test_a_forgotten_pruner_does_not_stand_in_the_way() -> None:
    def fit(model: nn.Module, method: str) -> None:
        optimizer = sgd(model)
        make(method, model, optimizer)
        train(model, optimizer, 40)

    model = mlp()
    fit(model, "flipout")
    fit(model, "keep-zeros")
    assert sum(int((model[i].weight != 0).sum()) for i in (0, 2, 4)) == 35


def test_a_default_device_does_not_matter() -> None:
    model = mlp()
    optimizer = sgd(model)
    with torch.device("meta"):
        pruner = flipout.MagnitudeUncertainty(
            model, optimizer, sparsity=0.5, steps=4, schedule=flipout.OneShot(0.5, 4, at=0), noise=1.0
        )
    assert pruner.nonzero == 176
