"""Save at any step, build everything again in a new process, and end with the same bits."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import flipout
from tests.helpers import fresh, make, mlp, run, same, sgd


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(sorted(flipout.METHODS)), st.integers(0, 40), st.booleans())
def test_resumed_at_any_step_it_ends_bit_for_bit_the_same(method: str, at: int, model_first: bool) -> None:
    model, optimizer, pruner = fresh(method)
    run(model, optimizer, pruner, at)
    saved_model = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    saved_optimizer = optimizer.state_dict()
    saved_optimizer["state"] = {k: {n: _clone(v) for n, v in s.items()} for k, s in saved_optimizer["state"].items()}
    saved_pruner = pruner.state_dict()
    run(model, optimizer, pruner, 40, skip=at)

    # The model's weights may be there before the pruner is built, or come after it.
    again = mlp(seed=5)
    if model_first:
        again.load_state_dict(saved_model)
    optimizer_again = sgd(again)
    pruner_again = make(method, again, optimizer_again)
    if not model_first:
        again.load_state_dict(saved_model)
    optimizer_again.load_state_dict(saved_optimizer)
    pruner_again.load_state_dict(saved_pruner)
    run(again, optimizer_again, pruner_again, 40, skip=at)

    assert all(torch.equal(a, b) for a, b in zip(weights(model), weights(again), strict=True))
    assert all(torch.equal(pruner.masks[name], pruner_again.masks[name]) for name in pruner.masks)
    assert pruner_again.events == pruner.events
    assert pruner_again.step == pruner.step == 40
    assert same(pruner.state_dict(), pruner_again.state_dict())


def _clone(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


SCRIPT = """
import sys, torch
sys.path.insert(0, {root!r})
from tests.helpers import fresh, run
method, path, start, stop, out = {method!r}, {path!r}, {start}, {stop}, {out!r}
model, optimizer, pruner = fresh(method)
if path:
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    pruner.load_state_dict(state["pruner"])
run(model, optimizer, pruner, stop, skip=start)
torch.save({{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "pruner": pruner.state_dict()}}, out)
"""


@pytest.mark.parametrize("method", ["flipout", "snip", "deep-r", "lottery"])
def test_through_a_file_and_into_another_process(method: str, tmp_path: Path) -> None:
    root = str(Path(__file__).parent.parent.parent)

    def go(path: str, start: int, stop: int, out: str) -> str:
        code = SCRIPT.format(root=root, method=method, path=path, start=start, stop=stop, out=out)
        subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
        return out

    whole = go("", 0, 40, str(tmp_path / "whole.pt"))
    part = go("", 0, 13, str(tmp_path / "part.pt"))
    rest = go(part, 13, 40, str(tmp_path / "rest.pt"))
    one, other = (torch.load(path, weights_only=True) for path in (whole, rest))
    assert same(one, other)


def test_a_saved_state_does_not_change_with_further_training() -> None:
    model, optimizer, pruner = fresh("flipout")
    run(model, optimizer, pruner, 10)
    state = pruner.state_dict()
    flips = {name: parts["low"].clone() for name, parts in state["statistics"]["flips"].items()}
    run(model, optimizer, pruner, 40, skip=10)
    assert all(torch.equal(parts["low"], flips[name]) for name, parts in state["statistics"]["flips"].items())
    assert state["step"] == 10


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"sparsity": 0.8}, r"schedule\.sparsity: 0\.9.*0\.8"),
        ({"steps": 50}, r"schedule\.steps: 40.*50"),
        ({"p": 1.0}, r"criterion\.p: 4\.0.*1\.0"),
        ({"noise": 0.5}, r"noise: None.*\{.*\}"),
        ({"second_chances": flipout.SecondChances(share=0.2)}, r"share: 0\.1.*0\.2"),
        ({"scope": "layer"}, "scope: global.*layer"),
        ({"floor": 2}, "floor: 0.*2"),
        ({"seed": 3}, "seed: 0.*3"),
        ({"schedule": flipout.Cubic}, r"schedule\.name: Geometric.*Cubic"),
        ({"exclude": "4"}, r"weights\.4\.weight: \[4, 8\].*absent"),
    ],
)
def test_other_settings_are_an_error_that_names_the_difference(options: dict[str, Any], difference: str) -> None:
    state = fresh("flipout")[2].state_dict()
    other = fresh("flipout", **options)[2]
    with pytest.raises(ValueError, match=difference):
        other.load_state_dict(state)


def test_another_method_criterion_or_architecture() -> None:
    state = fresh("flipout")[2].state_dict()
    with pytest.raises(ValueError, match=r"method: FlipOut .*GlobalMagnitude[\s\S]*flip_saliency"):
        fresh("magnitude")[2].load_state_dict(state)
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 9), nn.ReLU(), nn.Linear(9, 4))
    with pytest.raises(ValueError, match=r"2\.weight: \[8, 16\] .*\[9, 16\]"):
        make("flipout", model, sgd(model)).load_state_dict(state)
    with pytest.raises(ValueError, match="compiled, events"):
        fresh("flipout")[2].load_state_dict({"step": 3})
    for option, value in (("lambda_", 0.5), ("threshold", 0.5)):
        with pytest.raises(ValueError, match=option):
            fresh("hoyer-square", **{option: value})[2].load_state_dict(fresh("hoyer-square")[2].state_dict())
    with pytest.raises(ValueError, match=r"std\.horizon: 100 .*7"):
        fresh("magnitude-uncertainty", horizon=7)[2].load_state_dict(fresh("magnitude-uncertainty")[2].state_dict())


def test_a_criterion_is_compared_by_name_and_parameters() -> None:
    def build(criterion: Any) -> flipout.Pruner:
        model = mlp()
        return flipout.Pruner(model, sgd(model), criterion=criterion, schedule=flipout.Geometric(0.5, 20))

    def power(weight: Tensor, *, p: float = 1.0, names: tuple[str, ...] = ("a",)) -> Tensor:
        return weight.abs().pow(p)

    class Power:
        def __call__(self, weight: Tensor) -> Tensor:
            return weight.abs()

    state = build(partial(power, p=3.0)).state_dict()
    build(partial(partial(power, p=2.0), p=3.0)).load_state_dict(state)
    with pytest.raises(ValueError, match=r"criterion\.p: 3\.0 .*1\.0"):
        build(power).load_state_dict(state)
    with pytest.raises(ValueError, match=r"criterion\.name: .*power.*Power"):
        build(Power()).load_state_dict(state)


def test_an_unprunable_start_is_given_back_before_a_state_is_loaded() -> None:
    """SNIP prunes when it is built; trained weights that are already there must survive that."""
    model, optimizer, pruner = fresh("snip")
    run(model, optimizer, pruner, 20)
    trained = weights(model)
    other = mlp(seed=1)
    other.load_state_dict(model.state_dict())
    again = make("snip", other, sgd(other))
    again.load_state_dict(pruner.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(trained, weights(other), strict=True))


@pytest.mark.parametrize("method", ["snip", "deep-r"])
def test_weights_that_were_loaded_past_autograd_are_not_overwritten(method: str) -> None:
    model, optimizer, pruner = fresh(method)
    run(model, optimizer, pruner, 20)
    other = mlp(seed=1)
    again = make(method, other, sgd(other))
    for mine, trained in zip(other.parameters(), model.parameters(), strict=True):
        mine.data.copy_(trained.data)  # no version counter sees this
    again.load_state_dict(pruner.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(weights(model), weights(other), strict=True))


def test_settings_given_as_numpy_numbers(tmp_path: Path) -> None:
    def build(real: Any, whole: Any) -> flipout.Pruner:
        model = mlp()
        return flipout.HoyerSquare(
            model, sgd(model), steps=whole(40), lambda_=real(0.5), floor=whole(1), seed=whole(3), noise=real(0.25)
        )

    torch.save(build(np.float64, np.int64).state_dict(), tmp_path / "state.pt")
    build(float, int).load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    model = mlp()
    flipout.PaperFlipOut(model, sgd(model), sparsity=np.float64(0.5), steps=10, floor=np.float64(0.01))


def test_criteria_of_one_name_in_two_modules_differ() -> None:
    def one(weight: Tensor) -> Tensor:
        return weight.abs()

    def build(criterion: Any) -> flipout.Pruner:
        model = mlp()
        return flipout.Pruner(model, sgd(model), criterion=criterion, schedule=flipout.Geometric(0.5, 20))

    state = build(one).state_dict()
    one.__module__ = "elsewhere"
    with pytest.raises(ValueError, match=r"criterion\.name: tests\..*elsewhere\."):
        build(one).load_state_dict(state)


def test_a_state_has_the_version_and_is_loaded_whatever_it_is() -> None:
    state = fresh("flipout")[2].state_dict()
    assert state["version"] == flipout.__version__
    fresh("flipout")[2].load_state_dict({**state, "version": "0.0.1"})
    with pytest.raises(ValueError, match="version"):
        fresh("flipout")[2].load_state_dict({**state, "version": 3})
