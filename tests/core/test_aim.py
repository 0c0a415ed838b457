"""The aim test against a count by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import flipout
from flipout.aim import shots
from tests.helpers import batches, cross_entropy, mlp, sgd, train

NUMBERS = st.sampled_from([-1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0])


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=20), NUMBERS)
def test_over_and_under_shoots_of_a_step(moves: list[tuple[float, float]], phi: float) -> None:
    before, after = (torch.tensor(values) for values in zip(*moves, strict=True))
    over, under = shots(before - phi, after - phi)
    for i, (old, new) in enumerate(moves):
        side_before, side_after = (old > phi) - (old < phi), (new > phi) - (new < phi)
        assert bool(over[i]) == (side_before != side_after)
        assert bool(under[i]) == (side_before == side_after and abs(new - phi) < abs(old - phi))


@pytest.mark.parametrize("phi", [0.0, 0.1, "tensor", "names"])
def test_counts_over_a_training(phi: Any) -> None:
    model = mlp()
    optimizer = sgd(model)
    named = {name: p.detach().clone() for name, p in model.named_parameters() if p.ndim > 1}
    phi = {"tensor": torch.tensor(0.05), "names": named}.get(phi, phi) if isinstance(phi, str) else phi
    aim = flipout.AimTest(model, optimizer, phi=phi, kappa=5)
    expected = {name: [torch.zeros_like(w, dtype=torch.int32) for _ in range(2)] for name, w in named.items()}
    parameters = dict(model.named_parameters())
    for x, y in batches(25):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        before = {name: parameters[name].detach().clone() for name in named}
        optimizer.step()
        for name, (over, under) in expected.items():
            at = phi[name] if isinstance(phi, dict) else phi
            a, b = before[name] - at, parameters[name].detach() - at
            over += a.sign() != b.sign()
            under += (a.sign() == b.sign()) & (b.abs() < a.abs())
    for name, (over, under) in expected.items():
        assert torch.equal(aim.over_shoots[name], over)
        assert torch.equal(aim.under_shoots[name], under)
        assert torch.equal(aim.positive[name], over + under > 5)
        at = phi[name] if isinstance(phi, dict) else phi
        distance = (parameters[name].detach() - at).abs()
        torch.testing.assert_close(aim.score(p=1.5)[name], distance**1.5 / (over + under + 1))


def test_at_zero_it_is_flipout() -> None:
    model = mlp()
    optimizer = sgd(model)
    aim = flipout.AimTest(model, optimizer, counting="over-shoots")
    pruner = flipout.Pruner(
        model, optimizer, criterion=flipout.criteria.flip_saliency, schedule=flipout.OneShot(0.0, 30, 1), noise=1.0
    )
    train(model, optimizer, 30)
    for name, flips in pruner.statistics["flips"].items():
        assert torch.equal(aim.over_shoots[name], flips)
        weight = dict(model.named_parameters())[name].detach()
        assert torch.equal(aim.score()[name], flipout.criteria.flip_saliency(weight, flips))


@pytest.mark.parametrize("first", ["aim", "pruner"])
def test_beside_a_pruner_only_living_weights_count(first: str) -> None:
    model = mlp()
    optimizer = sgd(model)
    aim = flipout.AimTest(model, optimizer, counting="over-shoots") if first == "aim" else None
    pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.9, steps=40)
    aim = aim or flipout.AimTest(model, optimizer, counting="over-shoots")
    train(model, optimizer, 40)
    for name, flips in pruner.statistics["flips"].items():
        kept = pruner.masks[name]
        assert torch.equal(aim.over_shoots[name][kept], flips[kept])
        if first == "aim":
            assert torch.equal(aim.over_shoots[name], flips)


def test_the_hypothesis_is_what_it_was_when_the_test_began() -> None:
    model = mlp()
    optimizer = sgd(model)
    aim = flipout.AimTest(model, optimizer, phi=model.state_dict())
    train(model, optimizer, 10)
    assert int(aim.shots["0.weight"].sum()) > 0


def test_half_precision_scores_do_not_vanish() -> None:
    weights = nn.ParameterList([nn.Parameter(torch.full((9,), 1e-4, dtype=torch.float16))])
    aim = flipout.AimTest(weights, torch.optim.SGD(weights, 0.1), include="*")
    assert (aim.score()["0"] > 0).all()


def test_noise_turns_under_shoots_into_over_shoots() -> None:
    """A weight that creeps to zero from one side crosses it once there is noise."""

    def count(noise: float) -> tuple[int, int]:
        weight = nn.ParameterList([nn.Parameter(torch.full((50, 50), 0.5))])
        optimizer = torch.optim.SGD(weight, lr=0.1)
        aim = flipout.AimTest(weight, optimizer, include="*")
        flipout.Dense(weight, optimizer, include="*", noise=noise)
        for _ in range(60):
            optimizer.zero_grad()
            (weight[0] ** 2).sum().backward()
            optimizer.step()
        return int(aim.over_shoots["0"].sum()), int(aim.under_shoots["0"].sum())

    (no_over, many_under), (over, under) = count(0.0), count(10.0)
    assert no_over == 0
    assert many_under == 60 * 2500
    assert over > 2500
    assert under < many_under


def test_it_goes_on_from_a_saved_state_and_stops_when_removed() -> None:
    def run(parts: list[int]) -> tuple[dict[str, Any], Tensor]:
        model = mlp()
        optimizer = sgd(model)
        aim = flipout.AimTest(model, optimizer)
        for start, stop in zip([0, *parts], parts, strict=False):
            aim.remove()
            aim = flipout.AimTest(model, optimizer).load_state_dict(aim.state_dict())
            train(model, optimizer, stop, skip=start)
        aim.remove()
        train(model, optimizer, 5)
        return aim.state_dict(), model.get_parameter("0.weight").detach()

    (one, _), (two, _) = run([20]), run([7, 20])
    for kind in ("over_shoots", "under_shoots"):
        assert all(torch.equal(one[kind][name], two[kind][name]) for name in one[kind])
    model = mlp()
    with pytest.raises(ValueError, match=r"4\.weight"):
        flipout.AimTest(model, sgd(model), exclude="4").load_state_dict(one)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kappa": -1}, "kappa is -1"),
        ({"counting": "all"}, "counting is 'all'"),
        ({"phi": {"0.weight": 0.0}}, r"phi has no value for 2\.weight"),
        ({"phi": torch.zeros(3)}, r"phi has shape \(3,\) for 0\.weight"),
    ],
)
def test_nonsense(options: dict[str, Any], message: str) -> None:
    model = mlp()
    with pytest.raises(ValueError, match=message):
        flipout.AimTest(model, sgd(model), **options)
