"""Gradient clipping sees what the network depends on, in loops of one's own and on two ranks.

The same under Lightning and the Trainer of transformers is in `tests/integrations/test_clipping.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import flipout
from tests.forms.trainings import hidden
from tests.helpers import assert_masked, batches, cross_entropy, make, mlp, sgd, train
from tests.runtime.clipping import HUGE, METHODS, OPTIMIZERS, kept_norm, train_clipped

STEPS = 30


def trained(method: str, optimizer: str, max_norm: float | None, **options: Any) -> tuple[flipout.Pruner, list[float]]:
    model = mlp()
    pruner = make(method, model, OPTIMIZERS[optimizer](model), steps=STEPS)
    norms = train_clipped(model, pruner, max_norm, **options)
    assert pruner.finished
    assert_masked(pruner)
    return pruner, norms


@pytest.mark.parametrize(("accumulate", "scaled"), [(1, False), (2, True)])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", METHODS)
def test_a_limit_that_is_never_reached_changes_no_bit(
    method: str, optimizer: str, accumulate: int, scaled: bool
) -> None:
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=scaled) for _ in range(2)]
    plain, _ = trained(method, optimizer, None, accumulate=accumulate, scaler=scalers[0])
    clipped, norms = trained(method, optimizer, HUGE, accumulate=accumulate, scaler=scalers[1])
    assert len(norms) == STEPS
    assert clipped.events == plain.events
    for one, other in zip(plain.weights, clipped.weights, strict=True):
        assert torch.equal(one.parameter, other.parameter), one.name


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", METHODS)
def test_a_limit_that_is_reached_is_the_length_of_what_is_kept(method: str, optimizer: str) -> None:
    """`train_clipped` compares each norm with that of the kept weights."""
    _, norms = trained(method, optimizer, 0.02)
    assert min(norms) > 0.02


def test_clipping_shortens_the_gradients_that_hidden_values_learn_from() -> None:
    """By the same factor as those of the kept weights."""
    changes = []
    for factor in (1.0, 0.25):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        chances = flipout.SecondChances(trust=torch.inf)
        pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.9, steps=STEPS, second_chances=chances)
        train(model, optimizer, 10)
        optimizer.zero_grad()
        x, y = next(batches(1, seed=3))
        cross_entropy(model(x), y).backward()
        before = hidden(pruner)
        nn.utils.clip_grad_norm_(model.parameters(), factor * kept_norm(pruner))
        masks = pruner.masks
        optimizer.step()
        after = hidden(pruner)
        changes.append(torch.cat([(after[name] - before[name])[~masks[name]] for name in masks]))
    assert changes[0].any()
    torch.testing.assert_close(changes[1], changes[0] / 4, rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_the_norm_after_a_step_is_that_of_the_kept_weights_too(method: str) -> None:
    """People also log it there."""
    model = mlp()
    optimizer = sgd(model)
    pruner = make(method, model, optimizer, steps=STEPS)
    for x, y in batches(STEPS):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        masks = {weight.name: weight.mask.clone() for weight in pruner.weights}
        optimizer.step()
        for weight in pruner.weights:
            assert weight.parameter.grad is not None
            assert not weight.parameter.grad[~masks[weight.name]].any()
            assert weight.parameter.grad.any()


def test_half_precision_is_clipped_by_the_norm_of_the_kept_weights() -> None:
    """The gradients of pruned weights are held beside `.grad`, so clipping does not shorten them."""
    model = mlp().half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    pruner = make("flipout", model, optimizer, steps=STEPS)
    for x, y in batches(20):
        optimizer.zero_grad()
        cross_entropy(model(x.half()), y).backward()
        for weight in pruner.weights:
            assert weight.parameter.grad is not None
            assert not weight.parameter.grad[~weight.mask].any()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        assert float(norm) <= 0.5 or kept_norm(pruner) == pytest.approx(0.5, rel=0.02)
        optimizer.step()
        assert_masked(pruner)
    assert not pruner.permanent


def train_with(model: nn.Module, *acts: Callable[[], Any]) -> None:
    """Some steps in which something is done with the gradients."""
    for x, y in batches(20):
        model.zero_grad()
        cross_entropy(model(x), y).backward()
        for act in acts:
            act()


def halved(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad = parameter.grad.half().float()


def low_rank(model: nn.Module) -> None:
    """As PowerSGD: every number is an ordinary one."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            assert parameter.grad is not None
            left, sizes, right = torch.linalg.svd(parameter.grad, full_matrices=False)
            parameter.grad = sizes[0] * left[:, :1] @ right[:1] + 1e-4


@pytest.mark.parametrize("method", ["flipout", "rigl"])
@pytest.mark.parametrize("compress", [halved, low_rank])
def test_faint_gradients_that_do_not_arrive_are_warned_of_once(compress: Any, method: str) -> None:
    model = mlp()
    optimizer = sgd(model)
    make(method, model, optimizer, steps=STEPS)
    with pytest.warns(flipout.LostGradientsWarning, match="communication hook") as caught:
        train_with(model, lambda: compress(model), optimizer.step)
    (warning,) = (each for each in caught if each.category is flipout.LostGradientsWarning)
    assert warning.filename == __file__


@pytest.mark.parametrize("method", ["flipout", "rigl"])
def test_a_compression_that_keeps_the_range_is_fine(method: str) -> None:
    """As `bf16_compress_hook`: pruned weights learn from gradients of fewer bits."""
    model = mlp()
    optimizer = sgd(model)
    pruner = make(method, model, optimizer, steps=STEPS)

    def compress() -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad = parameter.grad.bfloat16().float()

    train_with(model, compress, optimizer.step)  # a warning is an error
    assert pruner.step == 20


def test_a_second_optimizer_of_the_same_weights_is_warned_of() -> None:
    """It takes faint numbers for gradients."""
    model = mlp()
    optimizer, second = sgd(model), torch.optim.Adam(model.parameters(), lr=1e-3)
    pruner = make("flipout", model, optimizer, steps=STEPS)
    with pytest.warns(flipout.LostZerosWarning, match="second optimizer"):
        train_with(model, second.step, optimizer.step)
    assert_masked(pruner)


@pytest.mark.slow
def test_two_ranks(tmp_path: Path) -> None:
    """DistributedDataParallel with its communication hooks, and FSDP2: see `clipping_ranks.py`."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(Path(__file__).parent / "clipping_ranks.py")]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path)], env=environment, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    errors = [rank.communicate(timeout=300)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(errors)
