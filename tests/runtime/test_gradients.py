"""What `.grad` holds between `backward()` and `step()`: 0 for a pruned weight, or next to nothing if it learns."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout
from flipout.statistics import Place
from flipout.weights import Weight
from tests.forms.trainings import CHANCES, STEPS, hidden, magnitude
from tests.helpers import batches, cross_entropy, full_gradients, make, mlp, sgd, train


def pruned_mlp(sparsity: float = 0.9, **options: Any) -> tuple[nn.Sequential, torch.optim.Optimizer, flipout.Pruner]:
    """A network that is pruned at once and then only trained."""
    model = mlp()
    optimizer = sgd(model, **options)
    schedule = flipout.OneShot(sparsity, 20, at=0)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=sparsity, steps=20, schedule=schedule, scope="layer")
    return model, optimizer, pruner


def expected_gradients(pruner: flipout.Pruner, full: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.where(pruner.masks[name], g, 0.0) if name in pruner.masks else g for name, g in full.items()}


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_clipping_sees_the_masked_gradients(micro_batches: int) -> None:
    model, optimizer, pruner = pruned_mlp()
    train(model, optimizer, 5)
    data = list(batches(micro_batches, seed=3))
    full = full_gradients(model, data)
    expected = expected_gradients(pruner, full)
    optimizer.zero_grad()
    for x, y in data:
        cross_entropy(model(x), y).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, expected[name])
        if name in pruner.masks:
            assert not parameter.grad[~pruner.masks[name]].any()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    torch.testing.assert_close(norm, torch.stack([grad.norm() for grad in expected.values()]).norm())
    assert norm < 0.9 * torch.stack([grad.norm() for grad in full.values()]).norm()


def test_clipping_does_not_slow_down_what_is_left() -> None:
    """With clipped gradients a nearly empty network still takes steps of the clipped length."""
    model, optimizer, pruner = pruned_mlp(0.97, lr=1.0, momentum=0.0, weight_decay=0.0)
    for x, y in batches(5):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        optimizer.step()
        length = (nn.utils.parameters_to_vector(model.parameters()).detach() - before).norm()
        assert float(length) == pytest.approx(0.01, rel=1e-3)
    assert pruner.nonzero == 11


def test_a_gradient_scaler_sees_the_masked_gradients() -> None:
    model, optimizer, pruner = pruned_mlp()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x, y = next(batches(1, seed=3))
    expected = expected_gradients(pruner, full_gradients(model, [(x, y)]))
    scaler.scale(cross_entropy(model(x), y)).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.testing.assert_close(norm, torch.stack([grad.norm() for grad in expected.values()]).norm())
    scaler.step(optimizer)
    assert pruner.step == 1


def test_a_compiled_model_gets_masked_gradients() -> None:
    inner = mlp()
    model = torch.compile(inner, backend="eager")
    assert isinstance(model, nn.Module)
    optimizer = sgd(inner)
    schedule = flipout.OneShot(0.9, 20, at=0)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.9, steps=20, schedule=schedule, scope="layer")
    x, y = next(batches(1))
    cross_entropy(model(x), y).backward()
    for weight in pruner.weights:
        assert weight.parameter.grad is not None
        assert weight.parameter.grad[weight.mask].any()
        assert not weight.parameter.grad[~weight.mask].any()


def test_gradients_set_by_hand_are_masked_inside_the_step() -> None:
    model, optimizer, pruner = pruned_mlp()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for weight in pruner.weights:
        assert weight.parameter.grad is not None
        assert torch.equal(weight.parameter.grad, weight.mask.float())


def test_a_nan_at_a_pruned_weight_does_not_reach_clipping() -> None:
    model, _, pruner = pruned_mlp()
    weight = pruner.weights[0].parameter
    weight.register_hook(lambda grad: torch.where(pruner.weights[0].mask, grad, float("nan")))
    x, y = next(batches(1))
    cross_entropy(model(x), y).backward()
    assert torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 1.0))


def test_a_dense_layer_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp()
    optimizer = sgd(model)
    flipout.GlobalMagnitude(model, optimizer, sparsity=0.9, steps=100)
    monkeypatch.setattr(Weight, "clear", lambda *_: pytest.fail("there is nothing to mask"))
    train(model, optimizer, 3)


def test_removed_and_dropped_pruners_leave_no_hooks() -> None:
    model, optimizer, pruner = pruned_mlp()
    pruner.remove()
    x, y = next(batches(1))
    cross_entropy(model(x), y).backward()
    assert all(
        weight.parameter.grad is not None and weight.parameter.grad[~weight.mask].any() for weight in pruner.weights
    )
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())

    model, optimizer, pruner = pruned_mlp()
    masks = pruner.masks
    del optimizer, pruner
    gc.collect()
    cross_entropy(model(x), y).backward()
    for name, mask in masks.items():
        grad = model.get_parameter(name).grad
        assert grad is not None
        assert grad[~mask].any()
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())


class Whole(flipout.Statistic):
    """Adds up the gradients it was shown, at pruned weights too."""

    gradient = "unmasked"

    def __init__(self, weight: Tensor, place: Place) -> None:
        super().__init__(weight, place)
        self.state["sum"] = torch.zeros_like(weight)

    def before(self, weight: Tensor, grad: Tensor | None) -> None:
        assert grad is not None
        self.state["sum"].add_(grad)

    def value(self, weight: Tensor, step: int) -> Tensor:
        return self.state["sum"]


def whole_magnitude(weight: Tensor, whole: Tensor) -> Tensor:
    return weight.abs() + 0 * whole


def test_a_statistic_of_the_unmasked_gradient_sees_both_micro_batches() -> None:
    model = mlp()
    optimizer = sgd(model)
    schedule = flipout.OneShot(0.9, 20, at=0)
    pruner = flipout.Pruner(
        model,
        optimizer,
        criterion=whole_magnitude,
        schedule=schedule,
        statistics={"whole": Whole},
        noise=0.5,
        scope="layer",
    )
    data = list(batches(2, seed=3))
    full = full_gradients(model, data)
    for x, y in data:
        cross_entropy(model(x), y).backward()
    optimizer.step()
    for weight in pruner.weights:
        torch.testing.assert_close(pruner.statistics["whole"][weight.name], full[weight.name])
        assert pruner.statistics["whole"][weight.name][~weight.mask].any()
        assert weight.parameter.grad is not None
        assert not weight.parameter.grad[~weight.mask].any()


# Where pruned weights learn.

Attach = Callable[[nn.Module, torch.optim.Optimizer], flipout.Pruner]
LEARNING: dict[str, Attach] = {
    "second chances": magnitude,
    "flipout": lambda m, o: flipout.FlipOut(m, o, sparsity=0.9, steps=STEPS, second_chances=CHANCES),
    "rigl": lambda m, o: make("rigl", m, o, steps=STEPS),
    "granet": lambda m, o: make("granet", m, o, steps=STEPS),
}


def learning(method: str, steps: int = 20) -> tuple[nn.Module, torch.optim.Optimizer, flipout.Pruner]:
    model = mlp()
    optimizer = sgd(model)
    pruner = LEARNING[method](model, optimizer)
    train(model, optimizer, steps)
    optimizer.zero_grad()
    return model, optimizer, pruner


@pytest.mark.parametrize("method", LEARNING)
def test_gradients_that_are_learned_from_are_faint(method: str) -> None:
    model, _, pruner = learning(method)
    x, y = next(batches(1, seed=3))
    full = full_gradients(model, [(x, y)])
    cross_entropy(model(x), y).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    for name, mask in pruner.masks.items():
        grad = model.get_parameter(name).grad
        assert grad is not None
        assert torch.equal(grad[mask], full[name][mask])
        assert (grad[~mask].abs() < 1e-15).all()
        assert torch.equal(grad[~mask] * 2.0**90, full[name][~mask])
    assert pruner.nonzero < pruner.prunable
    expected = expected_gradients(pruner, full).values()
    torch.testing.assert_close(norm, torch.stack([grad.norm() for grad in expected]).norm())


@pytest.mark.parametrize("method", ["rigl", "granet"])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_regrowth_gets_the_true_gradient(method: str, micro_batches: int) -> None:
    model, optimizer, pruner = learning(method)
    data = list(batches(micro_batches, seed=3))
    full = full_gradients(model, data)
    for x, y in data:
        cross_entropy(model(x), y).backward()
    nn.utils.clip_grad_value_(model.parameters(), 1e9)
    optimizer.step()
    assert not pruner.finished
    for name, grad in pruner.statistics["full_grad"].items():
        torch.testing.assert_close(grad, full[name])


def hidden_after(step: Callable[[nn.Module, torch.optim.Optimizer, Tensor, Tensor], None], dtype: Any) -> Any:
    """The hidden values after some steps, each taken by a function."""
    model = mlp().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    pruner = magnitude(model, optimizer)
    for x, y in batches(20):
        optimizer.zero_grad()
        step(model, optimizer, x.to(dtype), y)
    assert not all(weight.dense for weight in pruner.weights)
    return hidden(pruner)


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    cross_entropy(model(x), y).backward()
    optimizer.step()


def micro_batches(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    for a, b in zip(x.chunk(4), y.chunk(4), strict=True):
        (cross_entropy(model(a), b) / 4).backward()
    optimizer.step()


def scaler(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(cross_entropy(model(x), y)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    scaler.step(optimizer)


def by_hand(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    """Without a backward pass that the pruner sees."""
    for name, grad in full_gradients(model, [(x, y)]).items():
        model.get_parameter(name).grad = grad
    optimizer.step()


def by_function(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    parameters = list(model.parameters())
    for parameter, grad in zip(parameters, torch.autograd.grad(cross_entropy(model(x), y), parameters), strict=True):
        parameter.grad = grad
    optimizer.step()


def after_a_dropped_batch(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    (cross_entropy(model(x), y) * 100).backward()
    optimizer.zero_grad()
    plain_step(model, optimizer, x, y)


def after_a_skipped_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(cross_entropy(model(x), y) * torch.inf).backward()
    scaler.step(optimizer)  # which skips it
    optimizer.zero_grad()
    plain_step(model, optimizer, x, y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "step", [micro_batches, scaler, by_hand, by_function, after_a_dropped_batch, after_a_skipped_step]
)
def test_hidden_values_learn_the_same_however_a_gradient_comes_about(step: Any, dtype: torch.dtype) -> None:
    expected, found = hidden_after(plain_step, dtype), hidden_after(step, dtype)
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("step", [micro_batches, by_hand, after_a_dropped_batch])
def test_half_precision_has_no_faint_numbers_and_learns_all_the_same(step: Any) -> None:
    expected, found = hidden_after(plain_step, torch.float16), hidden_after(step, torch.float16)
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, rtol=0.02, atol=0.02)
        assert values.any()


def test_clipping_by_value_does_not_reach_pruned_weights() -> None:
    model = mlp()
    optimizer = sgd(model)
    schedule = flipout.OneShot(0.9, 20, at=0)
    pruner = flipout.Pruner(
        model, optimizer, criterion=whole_magnitude, schedule=schedule, statistics={"whole": Whole}, scope="layer"
    )
    x, y = next(batches(1, seed=3))
    full = full_gradients(model, [(x, y)])
    cross_entropy(model(x), y).backward()
    nn.utils.clip_grad_value_(model.parameters(), 1e-3)
    optimizer.step()
    for name, mask in pruner.masks.items():
        seen = pruner.statistics["whole"][name]
        torch.testing.assert_close(seen[mask], full[name][mask].clamp(-1e-3, 1e-3))
        torch.testing.assert_close(seen[~mask], full[name][~mask])


def test_other_ways_to_a_gradient_see_it_as_it_is() -> None:
    model, _, pruner = learning("second chances")
    x, y = next(batches(1, seed=3))
    full, seen = full_gradients(model, [(x, y)]), dict[str, Tensor]()
    for name in pruner.masks:
        model.get_parameter(name).register_hook(lambda grad, name=name: seen.update({name: grad.clone()}))
    found = torch.autograd.grad(cross_entropy(model(x), y), [model.get_parameter(name) for name in pruner.masks])
    cross_entropy(model(x), y).backward()
    for name, grad in zip(pruner.masks, found, strict=True):
        assert torch.equal(grad, full[name])
        assert torch.equal(seen[name], full[name])


def test_a_moved_parameter_still_has_faint_gradients() -> None:
    model, _, pruner = learning("second chances")
    model.double()
    data = list(batches(3, seed=3))
    full = full_gradients(model, [(x.double(), y) for x, y in data])
    for x, y in data:
        cross_entropy(model(x.double()), y).backward()
    for name, mask in pruner.masks.items():
        grad = model.get_parameter(name).grad
        assert grad is not None
        torch.testing.assert_close(grad * torch.where(mask, 1.0, 2.0**90), full[name])


def test_derivatives_of_gradients_keep_their_graph() -> None:
    """A penalty on the gradients of the weights, as for flat minima."""
    model, _, pruner = learning("second chances")
    twin = copy.deepcopy(model)  # without the pruner
    x, y = next(batches(1, seed=3))
    found = []
    for each in (model, twin):
        weight = each.get_parameter("0.weight")
        (grad,) = torch.autograd.grad(cross_entropy(each(x), y), weight, create_graph=True)
        penalty = torch.where(pruner.masks["0.weight"], grad, 0).square().sum()
        found.append(torch.autograd.grad(penalty, each.get_parameter("2.bias"))[0])
    assert found[0].any()
    torch.testing.assert_close(*found)


def _check_data_parallel(rank: int, bucket_view: bool) -> None:
    model, optimizer, pruner = pruned_mlp()
    parallel = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=bucket_view)
    data = list(batches(4, seed=3))
    for step in range(2):  # the second time with the buckets rebuilt
        full = {name: grad / 2 for name, grad in full_gradients(model, data[2 * step : 2 * step + 2]).items()}
        expected = expected_gradients(pruner, full)
        optimizer.zero_grad()
        x, y = data[2 * step + rank]
        cross_entropy(parallel(x), y).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            torch.testing.assert_close(parameter.grad, expected[name])
            if name in pruner.masks:
                assert not parameter.grad[~pruner.masks[name]].any()
        optimizer.step()


def _rank(rank: int, store: Path) -> None:
    try:
        torch.distributed.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{store}")
        for bucket_view in (False, True):
            _check_data_parallel(rank, bucket_view)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # gloo's threads sometimes keep an interpreter from ending


def test_data_parallel_gradients_are_masked(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    ranks = [spawn.Process(target=_rank, args=(rank, tmp_path / "store")) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
    assert [process.exitcode for process in ranks] == [0, 0]


def used_gradients(change: Callable[[nn.Module, torch.optim.Optimizer], None]) -> tuple[Tensor, Tensor]:
    """The gradients of kept weights before a step and as the optimizer gets them, after some change of `.grad`."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = flipout.FlipOut(model, optimizer, sparsity=0.9, steps=40)
    train(model, optimizer, 15)
    assert not pruner.permanent
    optimizer.zero_grad()
    x, y = next(batches(1, seed=5))
    cross_entropy(model(x), y).backward()
    change(model, optimizer)
    weight = pruner.weights[0]
    before = weight.parameter.grad.clone()  # type: ignore[union-attr]
    used: list[Tensor] = []
    optimizer.register_step_pre_hook(lambda *_: used.append(weight.parameter.grad.clone()))  # type: ignore[union-attr]
    mask = weight.mask.clone()
    optimizer.step()
    return before[mask], used[0][mask]


def centralize(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        if parameter.ndim > 1 and parameter.grad is not None:
            parameter.grad -= parameter.grad.mean(1, keepdim=True)


def add_noise(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad += 1e-5 * torch.randn_like(parameter.grad)


def step_and_compute_again(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()  # and no zero_grad()
    x, y = next(batches(1, seed=6))
    cross_entropy(model(x), y).backward()


@pytest.mark.parametrize("change", [centralize, add_noise, step_and_compute_again])
def test_an_ordinary_number_in_the_place_of_a_faint_one_is_used_as_it_is(
    change: Callable[[nn.Module, torch.optim.Optimizer], None],
) -> None:
    """Multiplied back, it would be astronomical, and the limit of its unit would leave nothing of the others."""
    before, used = used_gradients(change)
    assert float(used.norm()) > 0.1 * float(before.norm())


@pytest.mark.parametrize("options", [{"second_chances": True}, {"second_chances": None, "noise": 1.0}])
def test_gradients_in_another_order_of_memory_than_the_weight_are_changed_in_place(options: dict[str, Any]) -> None:
    def changed(memory: torch.memory_format) -> Tensor:
        torch.manual_seed(0)
        layer = nn.Conv2d(64, 64, 3, bias=False)
        model, weight = nn.Sequential(layer), layer.weight
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        flipout.FlipOut(model, optimizer, sparsity=0.9, steps=40, compile=False, **options)
        for step in range(12):
            torch.manual_seed(step)
            weight.grad = torch.randn(weight.shape).to(memory_format=memory)
            optimizer.step()
        assert weight.grad is not None
        return weight.grad.contiguous()

    torch.testing.assert_close(changed(torch.channels_last), changed(torch.contiguous_format))
