"""Weights that do not agree with the masks: whoever changes them after the step, the pruner says so by name."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import flipout
from tests.helpers import assert_masked, batches, cross_entropy, make, mlp, sgd, train, trained

WEIGHTS = ("0.weight", "2.weight", "4.weight")


def zeros(model: nn.Module) -> int:
    return sum(int((model.get_parameter(name) == 0).sum()) for name in WEIGHTS)


def assert_everybody_warns(pruner: flipout.Pruner) -> None:
    """Every place where a user could take the sparsity for granted names the layers and the remedy."""
    message = r"0\.weight \(\d+ of \d+\).*pruner\.apply_to\(model\)"
    with pytest.warns(flipout.LostZerosWarning, match=message):
        summary = pruner.summary()
    assert "apply_to" in str(summary)
    with pytest.warns(flipout.LostZerosWarning, match=message):
        pruner.state_dict()
    with pytest.raises(ValueError, match=message):
        pruner.check()
    lost = pruner.lost_zeros()
    assert lost
    assert sum(lost.values()) == pruner.prunable - pruner.nonzero - zeros(pruner.model)
    with pytest.warns(flipout.LostZerosWarning, match=message):
        pruner.remove()


def assert_nobody_warns(pruner: flipout.Pruner) -> None:
    with silence():
        assert "apply_to" not in str(pruner.summary())
        pruner.state_dict()
        pruner.check()
        assert pruner.lost_zeros() == {}


@contextmanager
def silence() -> Iterator[None]:
    gc.collect()  # what earlier tests left behind may warn when it is collected
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("method", sorted(flipout.METHODS))
def test_a_plain_training_is_silent(method: str) -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = make(method, model, optimizer)
    with silence():
        warnings.simplefilter("ignore", flipout.DeadLayerWarning)
        train(model, optimizer, 40)
    assert_nobody_warns(pruner)
    with silence():
        pruner.remove()


def test_a_moving_average_that_is_loaded_back() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.9, steps=20)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    train(model, optimizer, 20, after=lambda: average.update_parameters(model))
    assert_nobody_warns(pruner)
    with pytest.raises(ValueError, match=r"0\.weight.*apply_to"):
        pruner.check(average)
    model.load_state_dict(average.module.state_dict())
    assert_everybody_warns(pruner)
    pruner.apply_to(model)
    assert_nobody_warns(pruner)
    pruner.apply_to(average)
    pruner.check(average)


def test_the_best_model_is_loaded_at_the_end() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.9, steps=20)
    train(model, optimizer, 8)
    best, state = copy.deepcopy(model.state_dict()), pruner.state_dict()
    train(model, optimizer, 20, skip=8)
    model.load_state_dict(best)
    assert pruner.sparsity > 0.89
    assert sum(pruner.lost_zeros().values()) == 317 - zeros(model)
    with pytest.warns(flipout.LostZerosWarning, match=r"pruner\.load_state_dict\(\)"):
        pruner.summary()
    pruner.load_state_dict(state)
    assert_nobody_warns(pruner)
    assert pruner.nonzero == 352 - zeros(model)


class WithEvaluationWeights(torch.optim.SGD):
    """An optimizer that trains at one point and evaluates at an average, as schedule-free ones do.

    `inside` keeps the average where a pruner can clear it, in the optimizer's state; otherwise it is out of reach.
    """

    def __init__(self, parameters: Any, inside: bool) -> None:
        super().__init__(parameters, lr=0.1)
        self.inside, self.averages, self.count = inside, dict[Tensor, Tensor](), 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        self.count += 1
        for parameter in self.param_groups[0]["params"]:
            held = self.state[parameter] if self.inside else self.averages
            key = "average" if self.inside else parameter
            held.setdefault(key, parameter.clone())  # type: ignore[arg-type]
            held[key].lerp_(parameter, 1 / self.count)  # type: ignore[index]
        return loss

    @torch.no_grad()
    def eval(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.copy_(self.state[parameter]["average"] if self.inside else self.averages[parameter])


@pytest.mark.parametrize("inside", [True, False])
def test_an_optimizer_with_train_and_eval_modes(inside: bool) -> None:
    model = mlp()
    optimizer = WithEvaluationWeights(model.parameters(), inside)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.9, steps=20)
    train(model, optimizer, 20)
    assert_nobody_warns(pruner)
    optimizer.eval()
    if inside:  # cleared with the rest of the optimizer's state, at every pruning
        assert_nobody_warns(pruner)
    else:
        assert_everybody_warns(pruner)


class Lookahead:
    """Around an optimizer: every few steps the weights go half-way back to a slow copy."""

    def __init__(self, inner: torch.optim.Optimizer, every: int) -> None:
        self.inner, self.every, self.count = inner, every, 0
        self.slow = [p.detach().clone() for group in inner.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self) -> None:
        self.inner.step()
        self.count += 1
        if self.count % self.every == 0:
            for slow, parameter in zip(self.slow, self.inner.param_groups[0]["params"], strict=True):
                slow.lerp_(parameter, 0.5)
                parameter.copy_(slow)


@pytest.mark.parametrize("every", [1, 5])
def test_lookahead_around_the_pruned_optimizer_is_noticed_while_training(every: int) -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.9, steps=20)
    around = Lookahead(optimizer, every)

    def steps() -> None:
        for x, y in batches(20):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            around.step()

    with pytest.warns(flipout.LostZerosWarning, match="between steps") as caught:
        steps()
    assert len(caught) == 1
    assert_everybody_warns(pruner)


def test_weights_that_come_back_before_the_last_step() -> None:
    """After the last pruning nothing is planned any more, but the last step looks again."""
    model, optimizer, pruner = trained(steps=19)
    assert pruner.finished
    with torch.no_grad():
        model.get_parameter("2.weight").fill_(1.0)
    with pytest.warns(flipout.LostZerosWarning, match=r"2\.weight"):
        train(model, optimizer, 20, skip=19)
    assert_masked(pruner)
    with torch.no_grad():
        model.get_parameter("2.weight").fill_(1.0)
    with silence():
        train(model, optimizer, 21, skip=20)  # once is enough


def test_the_message_names_ten_layers_and_counts_the_rest() -> None:
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(12)))
    pruner = flipout.Pruner(
        model, sgd(model), criterion=flipout.criteria.magnitude, schedule=flipout.OneShot(0.5, 10, 0), scope="layer"
    )
    for parameter in model.parameters():
        nn.init.ones_(parameter)
    with pytest.raises(ValueError, match=r"9\.weight \(\d of \d\) and 2 more"):
        pruner.check()
    with pytest.raises(ValueError, match=r"0\.weight \((\d) of \1\)"):
        pruner.check(nn.Sequential())


EXIT = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent.parent.parent)!r})
import flipout
from tests.helpers import mlp, sgd, train
model = mlp()
optimizer = sgd(model)
start = dict((name, tensor.clone()) for name, tensor in model.state_dict().items())
pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.9, steps=20)
train(model, optimizer, 20)
"""


@pytest.mark.parametrize("loaded", [True, False])
def test_at_the_end_of_the_program(loaded: bool) -> None:
    code = EXIT + ("model.load_state_dict(start)\n" if loaded else "")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ("LostZerosWarning" in done.stderr) == loaded


def test_pruned_weights_that_are_not_in_the_model() -> None:
    model = mlp()
    pruner = flipout.GlobalMagnitude(
        model, sgd(model), sparsity=0.5, steps=4, schedule=flipout.OneShot(0.5, 4, at=0), exclude="2"
    )
    pruned = {name: int((~mask).sum()) for name, mask in pruner.masks.items()}
    assert pruner.lost_zeros(nn.Linear(2, 2)) == {name: number for name, number in pruned.items() if number}
    other = mlp()
    dense = flipout.Dense(other, sgd(other))
    assert dense.lost_zeros(nn.Linear(2, 2)) == {}  # nothing is pruned, so nothing is lost
