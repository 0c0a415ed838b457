"""Latent forms in training: what stands in the parameters, and when."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout
from flipout.forms import Latent
from flipout.methods.latent import LatentPruner
from tests.helpers import assert_masked, batches, cross_entropy, fresh, mlp, sgd, train

NOISY = ["variational-dropout", "l0"]
METHODS = [*NOISY, "dynamic-sparse-training"]
STEPS = 40


def attached(method: str, **options: Any) -> tuple[nn.Module, torch.optim.Optimizer, LatentPruner]:
    model, optimizer, pruner = fresh(method, **{"sparsity": None, "steps": STEPS, **options})
    assert isinstance(pruner, LatentPruner)
    return model, optimizer, pruner


def values(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(map(torch.equal, one, other))


def deterministic(pruner: LatentPruner) -> dict[str, Tensor]:
    """The deterministic weights, from the slots."""
    form = pruner.form
    return {w.name: form.run(form.computed, w.slots["theta"], w.slots["latent"], None) * w.mask for w in pruner.weights}


def is_deterministic(model: nn.Module, pruner: LatentPruner) -> bool:
    return all(torch.equal(model.get_parameter(name), value) for name, value in deterministic(pruner).items())


# What the network computes with.


@pytest.mark.parametrize("method", METHODS)
def test_the_deterministic_weights_stand_in_the_model_but_for_training_calls(method: str) -> None:
    model, optimizer, pruner = attached(method, latent_lr=0.1)
    x, y = next(batches(1, seed=5))
    start = values(model)
    model(x)
    assert equal(start, values(model))  # the first step is without noise
    train(model, optimizer, 5)
    assert is_deterministic(model, pruner)  # also what state_dict() holds
    after = values(model)
    loss = cross_entropy(model(x), y)
    assert is_deterministic(model, pruner) is (method not in NOISY)
    loss.backward()
    model.eval()
    expected = torch.func.functional_call(copy.deepcopy(model), deterministic(pruner), (x,))
    assert torch.equal(model(x), expected)
    assert equal(after, values(model))
    model.train()
    optimizer.step()
    assert is_deterministic(model, pruner)


@pytest.mark.parametrize("method", NOISY)
def test_every_call_of_a_step_sees_the_same_sample_and_every_step_another(method: str) -> None:
    model, optimizer, _ = attached(method)
    x, y = next(batches(1, seed=5))
    train(model, optimizer, 3)
    optimizer.zero_grad()
    samples = []
    for _ in range(2):
        cross_entropy(model(x), y).backward()
        samples.append(values(model))
        model.eval()(x)
        model.train()
    assert equal(*samples)
    optimizer.step()
    model(x)
    assert not equal(samples[0], values(model))


@pytest.mark.parametrize("method", NOISY)
def test_a_layer_that_is_called_by_itself_and_one_in_evaluation_mode(method: str) -> None:
    model, optimizer, pruner = attached(method)
    train(model, optimizer, 3)
    before, x = values(model), torch.ones(1, 12)
    model[0](x)  # type: ignore[index]
    assert not torch.equal(before[0], model.get_parameter("0.weight"))
    assert torch.equal(before[2], model.get_parameter("2.weight"))
    model[0].eval()  # type: ignore[index]  # a frozen part of a network in training
    model(x)
    assert torch.equal(before[0], model.get_parameter("0.weight"))
    assert not torch.equal(before[2], model.get_parameter("2.weight"))
    pruner._farewell.detach()


@pytest.mark.parametrize("method", NOISY)
def test_the_step_is_that_of_autograd_through_the_sample(method: str) -> None:
    model, optimizer, pruner = attached(method, lambda_=0.0)
    for group in optimizer.param_groups:
        group.update(lr=0.1, momentum=0.0, weight_decay=0.0)
    train(model, optimizer, 4)
    x, y = next(batches(1, seed=3))
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    form, twin = pruner.form, copy.deepcopy(model)
    leaves = {w.name: w.slots["theta"].clone().requires_grad_() for w in pruner.weights}
    latents = {w.name: w.slots["latent"].clone() for w in pruner.weights}
    shown = {w.name: form.computed(leaves[w.name], latents[w.name], form.noise(w, pruner.step)) for w in pruner.weights}
    loss = cross_entropy(torch.func.functional_call(twin, shown, (x,)), y)
    grads = torch.autograd.grad(loss, list(leaves.values()))
    optimizer.step()
    for weight, grad in zip(pruner.weights, grads, strict=True):
        expected = leaves[weight.name].detach() - 0.1 * grad
        torch.testing.assert_close(weight.slots["theta"], expected)


@pytest.mark.parametrize("method", NOISY)
def test_the_first_step_is_that_of_the_network_as_it_is(method: str) -> None:
    model, optimizer, pruner = attached(method, lambda_=0.0)
    twin = mlp()
    its_optimizer = sgd(twin)
    train(twin, its_optimizer, 1)
    train(model, optimizer, 1)
    for weight in pruner.weights:
        torch.testing.assert_close(weight.slots["theta"], twin.get_parameter(weight.name).detach())
    pruner._farewell.detach()


# The promises.


@pytest.mark.parametrize("sparsity", [None, 0.9])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("called", [None, False, True])
def test_a_training_is_resumed_bit_for_bit(method: str, sparsity: float | None, called: bool | None) -> None:
    options: dict[str, Any] = {"sparsity": sparsity, "latent_lr": 0.05, "fine_tune": 0.2}
    model, optimizer, pruner = attached(method, **options)
    train(model, optimizer, 13)
    if called is not None:
        model.train(called)(torch.ones(1, 12))  # puts in the sample, or the deterministic weights
        model.train()
    saved = copy.deepcopy((pruner.state_dict(), model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, STEPS, skip=13)
    again, its_optimizer, its_pruner = attached(method, **options)
    for thing, state in zip((its_pruner, again, its_optimizer), saved, strict=True):
        thing.load_state_dict(state)  # type: ignore[attr-defined]
    train(again, its_optimizer, STEPS, skip=13)
    assert equal(values(model), values(again))
    assert pruner.events == its_pruner.events


def resumed(method: str, *, called: bool, **options: Any) -> tuple[LatentPruner, nn.Module, LatentPruner, nn.Module]:
    """A pruner and its model after a few steps, and those that have loaded their state."""
    model, optimizer, pruner = attached(method, latent_lr=0.1)
    train(model, optimizer, 13)
    if called:
        model(torch.ones(1, 12))
    saved = copy.deepcopy((pruner.state_dict(), model.state_dict(), optimizer.state_dict()))
    again, its_optimizer, its_pruner = attached(method, latent_lr=0.1, **options)
    for thing, state in zip((its_pruner, again, its_optimizer), saved, strict=True):
        thing.load_state_dict(state)  # type: ignore[attr-defined]
    for each in (pruner, its_pruner):
        each._farewell.detach()
    return pruner, model, its_pruner, again


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_rounding_of_another_machine_is_no_change_of_the_weights(method: str, called: bool) -> None:
    """A gate is not multiplied into the weights, and a sample does not replace them."""
    pruner, _, its_pruner, again = resumed(method, called=called, compile=False)  # without loops in C
    again(torch.ones(1, 12))
    for weight, other in zip(pruner.weights, its_pruner.weights, strict=True):
        torch.testing.assert_close(weight.slots["theta"], other.slots["theta"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", NOISY)
def test_a_state_that_was_saved_after_a_training_call_is_evaluated_without_noise(method: str) -> None:
    _, model, its_pruner, again = resumed(method, called=True)
    x = torch.ones(1, 12)
    assert torch.equal(again.eval()(x), model.eval()(x))
    assert is_deterministic(again, its_pruner)


@pytest.mark.filterwarnings("ignore::flipout.UnfinishedWarning")
@pytest.mark.parametrize("method", NOISY)
def test_a_state_that_was_saved_after_a_training_call_is_removed_without_noise(method: str) -> None:
    _, model, its_pruner, again = resumed(method, called=True)
    its_pruner.remove()
    model.eval()(torch.ones(1, 12))
    assert equal(values(model), values(again))


@pytest.mark.parametrize("method", METHODS)
def test_a_finished_training_goes_back_to_an_earlier_state(method: str) -> None:
    model, optimizer, pruner = attached(method, sparsity=0.75, end=0.5)
    train(model, optimizer, 13)
    saved = copy.deepcopy((pruner.state_dict(), model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, STEPS, skip=13)
    first = values(model)
    for thing, state in zip((pruner, model, optimizer), saved, strict=True):
        thing.load_state_dict(state)  # type: ignore[attr-defined]
    train(model, optimizer, STEPS, skip=13)
    assert equal(first, values(model))


@pytest.mark.parametrize("method", METHODS)
def test_an_event_that_failed_is_made_up_for_after_loading_its_state(method: str) -> None:
    """Here the last one; the latents that it ranks are in the state."""
    model, optimizer, pruner = attached(method, sparsity=0.75, schedule=flipout.OneShot(0.75, STEPS, 0.5))
    train(model, optimizer, 13)
    state = {**pruner.state_dict(), "step": 25}
    pruner.load_state_dict(state)
    train(model, optimizer, 14, skip=13)
    assert pruner.nonzero == 88


@pytest.mark.parametrize("method", METHODS)
def test_plain_weights_remain_after_the_last_event(method: str) -> None:
    model, optimizer, pruner = attached(method, sparsity=0.75, end=0.5)
    keys = list(model.state_dict())
    train(model, optimizer, 19, after=lambda: assert_masked(pruner))
    assert all(weight.slots for weight in pruner.weights)
    train(model, optimizer, 20, skip=19)
    assert pruner.nonzero == 88
    assert not any(weight.slots for weight in pruner.weights)
    assert not any(module._forward_pre_hooks for module in model.modules())
    masks = {name: mask.clone() for name, mask in pruner.masks.items()}
    train(model, optimizer, STEPS, skip=20, after=lambda: assert_masked(pruner))
    assert pruner.nonzero == 88
    assert all(torch.equal(mask, pruner.masks[name]) for name, mask in masks.items())
    assert list(model.state_dict()) == keys


@pytest.mark.parametrize("method", METHODS)
def test_the_penalty_decides_without_a_sparsity(method: str) -> None:
    strong, rate = {"variational-dropout": (0.01, 0.8), "l0": (0.1, 0.2), "dynamic-sparse-training": (0.1, 0.05)}[
        method
    ]
    kept = []
    for lambda_ in (0.0, strong):
        model, optimizer, pruner = attached(method, lambda_=lambda_, latent_lr=rate, fine_tune=0.25)
        survivors: list[int] = []

        def look(pruner: LatentPruner = pruner, survivors: list[int] = survivors) -> None:
            survivors.append(sum(int(value.count_nonzero()) for value in deterministic(pruner).values()))

        pruner.stepped = look  # type: ignore[method-assign]
        train(model, optimizer, 30)
        pruner.stepped = lambda: None  # type: ignore[method-assign]
        assert [event.step for event in pruner.events] == [30]
        kept.append(pruner.nonzero)
        assert survivors[-1] == pruner.nonzero
        train(model, optimizer, STEPS, skip=30, after=lambda pruner=pruner: assert_masked(pruner))  # type: ignore[misc]
    assert kept[1] < 0.6 * kept[0]


@pytest.mark.parametrize("method", METHODS)
def test_a_step_that_fails_leaves_everything_as_it_was(method: str) -> None:
    model, optimizer, pruner = attached(method)
    train(model, optimizer, 5)
    slots = copy.deepcopy([weight.slots for weight in pruner.weights])

    def failing(*_: Any) -> None:
        raise RuntimeError("failing")

    handle = optimizer.register_step_pre_hook(failing)
    x, y = next(batches(1, seed=5))
    cross_entropy(model(x), y).backward()
    before = values(model)
    with pytest.raises(RuntimeError, match="failing"):
        optimizer.step()
    handle.remove()
    assert equal(before, values(model))
    for weight, old in zip(pruner.weights, slots, strict=True):
        assert all(torch.equal(weight.slots[name], value) for name, value in old.items())


@pytest.mark.parametrize("method", METHODS)
def test_copies_of_the_model_are_ordinary_networks(method: str) -> None:
    model, optimizer, pruner = attached(method)
    train(model, optimizer, 5)
    before, x = values(model), torch.ones(1, 12)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        twin.train()(x)
        assert equal(before, values(twin))
        assert equal(before, values(model))
    three = copy.deepcopy((model, optimizer, pruner))
    train(model, optimizer, 10, skip=5)
    train(three[0], three[1], 10, skip=5)
    assert equal(values(model), values(three[0]))
    for each in (pruner, three[2]):
        each._farewell.detach()


@pytest.mark.parametrize("method", METHODS)
def test_a_pruner_that_is_removed_leaves_deterministic_weights_and_no_hook(method: str) -> None:
    model, optimizer, pruner = attached(method)
    train(model, optimizer, 5)
    before = values(model)
    model(torch.ones(1, 12))
    with pytest.warns(flipout.UnfinishedWarning):
        pruner.remove()
    assert equal(before, values(model))
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("method", METHODS)
def test_weights_that_the_user_changes_are_trained_on(method: str) -> None:
    model, optimizer, pruner = attached(method)
    train(model, optimizer, 5)
    kept = pruner.weights[0].slots["theta"].clone()
    with torch.no_grad():
        model.get_parameter("0.weight")[0] = 0.25
    optimizer.zero_grad()
    x, y = next(batches(1, seed=5))
    cross_entropy(model(x), y).backward()
    for group in optimizer.param_groups:
        group.update(lr=0.0)
    optimizer.step()
    theta = pruner.weights[0].slots["theta"]
    assert torch.equal(theta[0], torch.full((12,), 0.25))
    assert torch.equal(theta[1:], kept[1:])
    pruner._farewell.detach()


@pytest.mark.parametrize("method", METHODS)
def test_a_gradient_scaler_and_an_optimizer_that_maximizes_change_nothing(method: str) -> None:
    results = []
    for kind in ("plain", "scaled", "maximize"):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, maximize=kind == "maximize")
        pruner = flipout.METHODS[method](model, optimizer, steps=STEPS, lambda_=0.01, latent_lr=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=kind == "scaled")
        for x, y in batches(10):
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            scaler.scale(-loss if kind == "maximize" else loss).backward()
            scaler.step(optimizer)
            scaler.update()
        results.append([weight.slots["latent"].clone() for weight in pruner.weights] + values(model))
        pruner._farewell.detach()
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("method", NOISY)
def test_a_training_without_calls_of_the_model_is_warned_of(method: str) -> None:
    model, optimizer, pruner = attached(method)
    train(model, optimizer, 2)
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    twin = copy.deepcopy(model)
    x, y = next(batches(1))
    cross_entropy(torch.func.functional_call(twin, parameters, (x,)), y).backward()
    with pytest.warns(flipout.NoSampleWarning, match=r"0\.weight"):
        optimizer.step()
    pruner._farewell.detach()


# Pitfalls.


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_variational_dropout_of_biases_stays_finite(optimizer: str) -> None:
    """A bias that starts at 0 has an infinite `log alpha` without the small number in its logarithm, and a variance
    that SGD would train diverges: the latents always have Adam."""
    model = mlp()
    with torch.no_grad():
        for i in (0, 2, 4):
            model.get_parameter(f"{i}.bias").zero_()
    kind = torch.optim.SGD if optimizer == "sgd" else torch.optim.Adam
    its_optimizer = kind(model.parameters(), lr=0.1)
    names = [name for name, _ in model.named_parameters()]
    pruner = flipout.VariationalDropout(
        model, its_optimizer, steps=STEPS, include=names, lambda_=0.1, latent_lr=0.5, warm_up=(0.0, 0.0)
    )
    train(model, its_optimizer, STEPS - 1)
    assert all(value.isfinite().all() for value in values(model))
    assert all(slot.isfinite().all() for weight in pruner.weights for slot in weight.slots.values())
    assert all(weight.slots["latent"].abs().max() < 40 for weight in pruner.weights)
    pruner._farewell.detach()


@pytest.mark.parametrize("method", METHODS)
def test_weight_decay_acts_on_the_weights_and_not_on_the_latents(method: str) -> None:
    """Not on thresholds, and not on `theta * z` either: a gate that closes does not change how a weight decays."""
    latents, thetas = [], []
    for decay in (0.0, 0.5):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=decay)
        pruner = flipout.METHODS[method](model, optimizer, steps=STEPS, lambda_=0.05, latent_lr=0.1)
        for _ in range(3):
            model(torch.zeros(1, 12))
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            start = [weight.slots["theta"].clone() for weight in pruner.weights]
            optimizer.step()
        latents.append([weight.slots["latent"].clone() for weight in pruner.weights])
        thetas.append([weight.slots["theta"] for weight in pruner.weights])
        if decay and method == "l0":
            assert all(
                torch.allclose(w.slots["theta"], 0.95 * old) for w, old in zip(pruner.weights, start, strict=True)
            )
        pruner._farewell.detach()
    if method != "variational-dropout":  # whose penalty depends on the weights
        assert equal(*latents)
    assert not equal(*thetas)


def test_a_layer_with_next_to_nothing_left_gets_its_thresholds_reset() -> None:
    """So the paper's mode cannot reach 99.9 %."""
    model, optimizer, pruner = attached("dynamic-sparse-training", lambda_=0.1, latent_lr=0.2)
    lowest = []
    form = pruner.form

    def look() -> None:
        for weight in pruner.weights if pruner.step < STEPS else ():
            active = int(form.survives(weight.slots["theta"], weight.slots["latent"]).sum())
            assert active > 0.01 * weight.size
            lowest.append(float(weight.slots["latent"].max()))

    train(model, optimizer, STEPS, after=look)
    assert 0.0 in lowest
    assert max(lowest) > 0
    assert pruner.sparsity < 0.99


@pytest.mark.parametrize("method", METHODS)
def test_an_extreme_sparsity_is_exact_if_it_is_asked_for(method: str) -> None:
    model, optimizer, pruner = attached(method, sparsity=0.99)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", flipout.DeadLayerWarning)
        train(model, optimizer, STEPS)
    assert pruner.nonzero == 4


def test_gates_of_units_close_whole_inputs() -> None:
    model, optimizer, pruner = attached("l0", gates="unit", lambda_=0.0, latent_lr=1e-6)
    assert [tuple(weight.slots["latent"].shape) for weight in pruner.weights] == [(1, 12), (1, 16), (1, 8)]
    train(model, optimizer, 5)
    pruner.weights[0].slots["latent"][0, :4] = -4.0
    train(model, optimizer, STEPS, skip=5)
    masks = list(pruner.masks.values())
    assert not masks[0][:, :4].any()
    assert masks[0][:, 4:].all()
    assert masks[1].all()
    assert masks[2].all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize("method", METHODS)
def test_the_default_dtype_changes_nothing(method: str, dtype: torch.dtype) -> None:
    results = []
    for default in (torch.float32, dtype):
        model, optimizer, pruner = attached(method, latent_lr=0.1)
        data = list(batches(5))
        try:
            torch.set_default_dtype(default)
            for x, y in data:
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
        finally:
            torch.set_default_dtype(torch.float32)
        results.append([*values(model), *(weight.slots["latent"] for weight in pruner.weights)])
        pruner._farewell.detach()
    assert equal(*results)


@pytest.mark.parametrize("method", METHODS)
def test_a_small_penalty_does_not_vanish_in_half_precision(method: str) -> None:
    model = mlp().half()
    more = {"warm_up": (0.0, 0.0)} if method == "variational-dropout" else {}
    pruner = flipout.METHODS[method](model, sgd(model), steps=STEPS, lambda_=1e-8, latent_lr=0.1, **more)
    model(torch.ones(1, 12).half())
    before = [weight.slots["latent"].clone() for weight in pruner.weights]
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    pruner.optimizer.step()
    assert not any(torch.equal(weight.slots["latent"], old) for weight, old in zip(pruner.weights, before, strict=True))
    pruner._farewell.detach()


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("options", [{}, {"compile": False}, {"gates": "unit"}])
@pytest.mark.parametrize("method", METHODS)
def test_weights_without_elements(method: str, options: dict[str, Any]) -> None:
    if "gates" in options and method != "l0":
        return
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(12, 4), nn.Linear(0, 4), nn.Linear(4, 0)])
    optimizer = sgd(model)
    pruner = flipout.METHODS[method](model, optimizer, steps=STEPS, **options)
    for x, y in batches(3):
        optimizer.zero_grad()
        y_ = model[0](x) + model[1](x[:, :0])
        (cross_entropy(y_, y) + model[2](y_).sum()).backward()
        optimizer.step()
    for weight in pruner.weights[1:]:
        assert not any(slot.any() for slot in weight.slots.values() if slot is not weight.slots["latent"])
        assert all(slot.isfinite().all() for slot in weight.slots.values())
    pruner._farewell.detach()


@pytest.mark.parametrize("compiled", [False, "auto"])
@pytest.mark.parametrize("method", METHODS)
def test_vectors_and_single_numbers(method: str, compiled: Any) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.factors, self.factor = mlp(), nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Any:
            return self.inner(x) * self.factors * self.factor

    model = Scaled()
    names = ["factor", "factors", "inner.0.weight"]
    optimizer = sgd(model)
    options: dict[str, Any] = {"sparsity": 0.5, "include": names, "compile": compiled}
    pruner = flipout.METHODS[method](model, optimizer, steps=STEPS, **options)
    train(model, optimizer, STEPS, after=lambda: assert_masked(pruner))
    assert pruner.nonzero == round(0.5 * pruner.prunable)


# What is refused.


@pytest.mark.parametrize(
    ("method", "options", "text"),
    [
        ("l0", {"lambda_": -1.0}, "lambda_"),
        ("l0", {"latent_lr": 0.0}, "latent_lr"),
        ("l0", {"gates": "layer"}, "gates"),
        ("l0", {"drop": 1.0}, "drop"),
        ("variational-dropout", {"warm_up": (0.5, 0.1)}, "warm_up"),
        ("variational-dropout", {"fine_tune": 1.0}, "fine_tune"),
        ("dynamic-sparse-training", {"start": 0.1}, "sparsity="),
        ("dynamic-sparse-training", {"scope": "layer"}, "sparsity="),
        ("dynamic-sparse-training", {"granularity": "2:4"}, "sparsity="),
    ],
)
def test_nonsense(method: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        attached(method, **options)


@pytest.mark.parametrize("method", METHODS)
def test_shrinking_is_refused_with_the_reason(method: str) -> None:
    model, optimizer, pruner = attached(method, sparsity=0.9)
    train(model, optimizer, STEPS)
    assert isinstance(pruner.form, Latent)
    with pytest.raises(ValueError, match="latent"):
        pruner.shrink(torch.ones(2, 12))
