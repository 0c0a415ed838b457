"""When the step is compiled, what a resumed run does, and what happens where there is no compiler."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

import flipout
from flipout import NotCompiledWarning
from flipout.kernels import step_loops
from flipout.runtime import compiler
from flipout.runtime.noise import perturb
from tests.helpers import cross_entropy, mlp, sgd, train


def trained(compile: bool, steps: int = 40) -> tuple[nn.Module, flipout.Pruner]:  # noqa: A002
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.8, steps=steps, noise=0.5, compile=compile)
    train(model, optimizer, steps)
    return model, pruner


def test_a_compiled_training_goes_as_an_uncompiled_one() -> None:
    """Rounding differs in the last bits of the noise, so the weights drift apart, slowly; the counts of pruned and kept
    are exact either way."""
    (fast, quick), (slow, plain) = trained(True), trained(False)
    assert quick.state_dict()["compiled"] is True
    assert plain.state_dict()["compiled"] is False
    assert quick.nonzero == plain.nonzero
    for a, b in zip(fast.parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)
    agree = sum(int((quick.masks[name] == mask).sum()) for name, mask in plain.masks.items())
    assert agree >= 0.98 * plain.prunable


def test_nothing_is_compiled_again_after_two_steps() -> None:
    model = nn.Sequential(nn.Linear(70, 80), nn.ReLU(), nn.Linear(80, 30), nn.Linear(30, 4))
    optimizer = sgd(model)
    flipout.PaperFlipOut(model, optimizer, sparsity=0.9, steps=60, compile=True)

    def steps(number: int) -> None:
        for _ in range(number):
            optimizer.zero_grad()
            cross_entropy(model(torch.randn(8, 70)), torch.randint(4, (8,))).backward()
            optimizer.step()

    steps(4)  # the first pruning, which compiles its scores, is at step 3
    frames = counters["stats"]["unique_graphs"]
    steps(50)
    assert counters["stats"]["unique_graphs"] == frames


@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("layout", ["channels last", "transposed", "vector"])
def test_weights_that_do_not_lie_in_rows(layout: str, compile: bool) -> None:  # noqa: A002
    """The same noise and counts as for a copy that does."""
    masks, weights = [], []
    for odd in (False, True):
        torch.manual_seed(0)
        weight = {"channels last": torch.randn(6, 5, 3, 3), "transposed": torch.randn(9, 8), "vector": torch.randn(50)}[
            layout
        ]
        if odd and layout == "channels last":
            weight = weight.to(memory_format=torch.channels_last)
        elif odd:
            weight = weight.t().contiguous().t() if layout == "transposed" else torch.stack([weight, weight], 1)[:, 0]
        module = nn.Module()
        module.weight = nn.Parameter(weight)
        optimizer = torch.optim.SGD([module.weight], lr=0.3)
        pruner = flipout.PaperFlipOut(module, optimizer, sparsity=0.7, steps=20, include="weight", compile=compile)
        for _ in range(20):
            module.weight.grad = (module.weight.detach() * 0.1).clone()
            optimizer.step()
        masks.append(pruner.masks["weight"])
        weights.append(module.weight.detach())
    assert torch.equal(*masks)
    torch.testing.assert_close(*weights)


def test_auto_goes_by_steps_and_sizes_alone() -> None:
    assert not compiler.decide("auto", 266_200, 1_000)
    assert compiler.decide("auto", 266_200, 150_000)
    assert compiler.decide("auto", 11_000_000, 5_000)


def paths(method: type[flipout.Gradual], steps: int, dtype: torch.dtype = torch.float32) -> tuple[bool, bool]:
    """Whether a pruner uses loops in C, and whether it compiles."""
    model = mlp().to(dtype)
    state = method(model, sgd(model), sparsity=0.5, steps=steps).state_dict()
    return state["in_c"], state["compiled"]


def test_auto_uses_loops_in_c_where_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    long, built = 10**9, step_loops.available()
    assert paths(flipout.PaperFlipOut, long) == (built, not built)
    assert paths(flipout.GlobalMagnitude, long) == (built, False)
    assert paths(flipout.PaperFlipOut, long, torch.float64) == (False, True)
    assert paths(flipout.PaperFlipOut, 100, torch.float64) == (False, False)
    monkeypatch.setattr(step_loops, "find_kernels", lambda: None)
    assert paths(flipout.PaperFlipOut, long) == (False, True)


def test_what_compile_can_be() -> None:
    model = mlp()
    with pytest.raises(ValueError, match="compile is 'always'"):
        flipout.PaperFlipOut(model, sgd(model), sparsity=0.5, steps=10, compile="always")  # type: ignore[arg-type]


@pytest.mark.parametrize("compile_first", [True, False])
def test_a_resumed_run_takes_the_same_path_bit_for_bit(compile_first: bool) -> None:
    whole, _ = trained(compile_first)
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.8, steps=40, noise=0.5, compile=compile_first)
    train(model, optimizer, 17)
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict(), pruner.state_dict()])
    again = mlp(seed=5)
    resumed = sgd(again)
    other = flipout.PaperFlipOut(again, resumed, sparsity=0.8, steps=40, noise=0.5)  # by itself uncompiled
    again.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    other.load_state_dict(saved[2])
    train(again, resumed, 40, skip=17)
    assert other.state_dict()["compiled"] is compile_first
    for a, b in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_failed_compilation_is_one_warning_and_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            raise RuntimeError("no such thing")
        return x + 1

    monkeypatch.setattr(compiler, "failures", [])
    run = compiler.compiled(broken)
    with pytest.warns(NotCompiledWarning, match=r"C\+\+ compiler"):
        assert run(torch.ones(2)).tolist() == [2, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(torch.ones(2)).tolist() == [2, 2]


NO_COMPILER = """
import torch, warnings
import flipout
from flipout.kernels import step_loops
model = torch.nn.Linear(20, 30)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.9, steps=20, compile=True)
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(4, 20)).square().sum().backward()
        optimizer.step()
messages = [str(w.message) for w in caught if issubclass(w.category, flipout.NotCompiledWarning)]
print(len(messages), pruner.nonzero, "C++ compiler" in messages[0])
"""


def test_without_a_compiler_training_goes_on(tmp_path: Path) -> None:
    """A process of its own: an empty cache, and no compiler to be found."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "CXX": "no-such-compiler"}
    done = subprocess.run(
        [sys.executable, "-c", NO_COMPILER], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "60", "True"], done.stderr


def test_a_kernel_of_one_kind_is_shared_by_all_pruners() -> None:
    first = compiler.compiled(perturb, torch.float32, 2)
    assert compiler.compiled(perturb, torch.float32, 2) is first
    assert compiler.compiled(perturb, torch.float64, 2) is not first


def test_a_weight_that_was_moved_is_found_again() -> None:
    """`weight.data = ...`, as moving a model to another device does it, must not leave the work on the old memory."""
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.8, steps=40)
    train(model, optimizer, 10)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    train(model, optimizer, 40, skip=10)
    assert pruner.nonzero == 70
    for weight in pruner.weights:
        assert int(torch.count_nonzero(weight.parameter)) == weight.kept


def test_what_was_asked_for_goes_before_what_was_saved() -> None:
    _, pruner = trained(True)
    model = mlp()
    other = flipout.PaperFlipOut(model, sgd(model), sparsity=0.8, steps=40, noise=0.5, compile=False)
    other.load_state_dict(pruner.state_dict())
    assert other.state_dict()["compiled"] is False


def test_a_run_that_could_not_be_compiled_says_so_in_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp()
    pruner = flipout.PaperFlipOut(model, sgd(model), sparsity=0.8, steps=40, compile=True)
    monkeypatch.setattr("flipout.runtime.kernels.failures", [RuntimeError()])
    assert pruner.state_dict()["compiled"] is False


def pruned_masks(compile: bool, layers: list[nn.Module], **options: Any) -> dict[str, Tensor]:  # noqa: A002
    torch.manual_seed(0)
    model = nn.Sequential(*copy.deepcopy(layers))
    optimizer = sgd(model, lr=0.0)
    options = {"criterion": partial(flipout.criteria.flip_saliency, p=2.0), **options}
    pruner = flipout.Pruner(model, optimizer, schedule=flipout.Geometric(0.5, 4), compile=compile, **options)
    for _ in range(4):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    return pruner.masks


class Reversed(flipout.Statistic):
    def value(self, weight: Tensor, step: int) -> Tensor:
        return 1 / (weight.abs() + 1e-6)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize(
    "options",
    [
        {"statistics": {"weight": Reversed}},
        {"criterion": partial(flipout.criteria.flip_saliency, p=np.float64(2.0))},
    ],
)
def test_compiled_scores_are_those_of_the_criterion_asked_for(options: dict[str, Any]) -> None:
    layers: list[nn.Module] = [nn.Linear(8, 8), nn.Linear(0, 5), nn.Linear(5, 0)]  # two have nothing to score
    fast, slow = (pruned_masks(compile, layers, **options) for compile in (True, False))  # noqa: A001
    assert all(torch.equal(fast[name], slow[name]) for name in slow)
