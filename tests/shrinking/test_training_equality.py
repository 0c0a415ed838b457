"""A shrunk network trains as the whole one would: the same losses, weights, norms, statistics and masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import flipout

from .networks import NETWORKS, batch, build, parts_in_network, set_aside, step

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=1e-2),
    "nesterov": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.005, momentum=0.5, centered=True),
}


def gradual(window: tuple[float, float] = (0.1, 0.7)) -> Any:
    return lambda sparsity, steps: flipout.Geometric(sparsity, steps, prunings=6, window=window)


pytestmark = pytest.mark.filterwarnings(
    "ignore::flipout.DeadLayerWarning", "ignore::flipout.DivergenceWarning", "ignore:shrink.. removed nothing"
)

METHODS: dict[str, Callable[..., flipout.Pruner]] = {
    "flipout": lambda *a, **k: flipout.FlipOut(*a, second_chances=None, schedule=gradual(), **k),
    "noise": lambda *a, **k: flipout.PaperFlipOut(*a, schedule=gradual(), seed=5, **k),
    "weight noise": lambda *a, **k: flipout.PaperFlipOut(
        *a, schedule=gradual(), noise=flipout.GradientNoise(0.01, "weight", 3), **k
    ),
    "layers": lambda *a, **k: flipout.GlobalMagnitude(*a, schedule=gradual(), scope="layer", floor=2, **k),
    "random": lambda *a, **k: flipout.Random(*a, schedule=gradual(), floor=1, **k),
    "uncertainty": lambda *a, **k: flipout.MagnitudeUncertainty(*a, schedule=gradual(), **k),
    "fisher": lambda *a, **k: flipout.Fisher(*a, schedule=gradual(), **k),
    "dead first": lambda *a, **k: flipout.GlobalMagnitude(*a, schedule=gradual(), dead_first=True, **k),
}
STEPS = 14


def trained(
    network: str, optimizer: str, method: str, sparsity: float, shrinks: set[int], seed: int
) -> tuple[nn.Module, flipout.Pruner, list[float], list[dict[str, Tensor]], dict[str, Tensor]]:
    """Train with shrinks after some steps; return the losses and the masks of every step, and marks of the weights that
    the network has at the end."""
    model = build(network, seed)
    chosen = OPTIMIZERS[optimizer](model.parameters())
    pruner = METHODS[method](model, chosen, sparsity=sparsity, steps=STEPS, compile=False)
    losses, masks = [], []
    for number in range(STEPS):
        losses.append(step(model, chosen, number))
        if number in shrinks:
            pruner.shrink(batch(99)[0])
        assert pruner.finished or not set_aside(pruner)
        with pruner.expanded():
            masks.append({name: mask.clone() for name, mask in pruner.masks.items()})
    there = parts_in_network(pruner)
    pruner.expand()
    return model, pruner, losses, masks, there


CASES = st.tuples(
    st.sampled_from(sorted(NETWORKS)),
    st.sampled_from(sorted(OPTIMIZERS)),
    st.sampled_from(sorted(METHODS)),
    st.sampled_from([0.5, 0.9, 0.97, 0.99]),
    st.sets(st.integers(2, STEPS - 2), min_size=1, max_size=3),
    st.integers(0, 5),
)
Case = tuple[str, str, str, float, set[int], int]


@settings(deadline=None, max_examples=8)
@given(CASES)
def test_a_shrunk_network_trains_as_the_whole_one(case: Case) -> None:
    assert_equal_training(case)


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(CASES)
def test_many_shrunk_networks_train_as_whole_ones(case: Case) -> None:
    assert_equal_training(case)


def assert_equal_training(case: Case) -> None:
    """Train with and without shrinks, and compare everything."""
    network, optimizer, method, sparsity, _, seed = case
    whole, pruner, losses, masks, _ = trained(network, optimizer, method, sparsity, set(), seed)
    model, shrunk, same_losses, same_masks, there = trained(*case)
    assert same_losses == pytest.approx(losses, rel=1e-9, abs=1e-9)
    for before, after in zip(masks, same_masks, strict=True):
        assert all(torch.equal(before[name], after[name]) for name in before)
    assert shrunk.nonzero == pruner.nonzero
    assert [event[:3] for event in shrunk.events] == [event[:3] for event in pruner.events]
    assert [event.kept for event in shrunk.events] == [event.kept for event in pruner.events]
    weights, same = dict(whole.named_parameters()), dict(model.named_parameters())
    for name, left in there.items():  # others are set aside: nothing reads them, and no pruning follows
        torch.testing.assert_close(same[name][left], weights[name][left], rtol=1e-7, atol=1e-9)
        assert bool(same[name][pruner.masks[name] & ~left].all())
    for name, values in pruner.statistics.items():
        for weight, mask in pruner.masks.items():
            left = mask & there[weight]
            one, other = shrunk.statistics[name][weight][left], values[weight][left]
            torch.testing.assert_close(one.double(), other.double(), rtol=1e-5, atol=1e-7)
    images = batch(50)[0]
    for mode in (True, False):
        torch.testing.assert_close(model.train(mode)(images), whole.train(mode)(images), rtol=1e-7, atol=1e-9)


def test_norms_of_what_is_left_are_the_same() -> None:
    """Running statistics, biases and momentum of the channels that stay, at the last step of a shrunk network."""
    model, whole = build("plain"), build("plain")
    ends = []
    for network, shrinks in ((model, True), (whole, False)):
        optimizer = OPTIMIZERS["sgd"](network.parameters())
        pruner = METHODS["flipout"](network, optimizer, sparsity=0.97, steps=STEPS)
        for number in range(STEPS):
            step(network, optimizer, number)
            if shrinks and number in (8, 11):
                pruner.shrink(batch(0)[0])
        ends.append((pruner, optimizer))
    (pruner, optimizer), (_, other) = ends
    assert pruner.shrunk
    left = pruner.shrunk_indices
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        original = dict((*whole.named_parameters(), *whole.named_buffers()))[name]
        states = [(tensor, original)]
        if tensor in optimizer.state:
            states.append((optimizer.state[tensor]["momentum_buffer"], other.state[original]["momentum_buffer"]))
        for here, there in states:
            for dimension, index in enumerate(left.get(name, ())):
                there = there if index is None else there.index_select(dimension, index)
            torch.testing.assert_close(here, there, rtol=1e-9, atol=1e-10)
