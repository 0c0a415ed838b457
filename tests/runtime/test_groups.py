"""Groups: many small weights in one buffer do what they do one at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import flipout
from flipout.runtime import groups
from flipout.runtime.groups import Gathered
from tests.helpers import assert_masked

STEPS = 12

METHODS: dict[str, Callable[..., flipout.Pruner]] = {
    "flips and noise": flipout.PaperFlipOut,
    "second chances": flipout.FlipOut,
    "second chances and noise": lambda *args, **options: flipout.FlipOut(*args, noise=0.5, **options),
    "gradients": flipout.Fisher,
    "regrowth": flipout.RigL,
}

SHAPES = st.sampled_from([(5, 7), (3, 2, 2, 2), (9,), (1, 1), (4, 1), (0, 3), (200, 200)])
KINDS = st.sampled_from(["plain", "plain", "transposed", "large", "without gradient"])
CHANGES = st.sampled_from(["nothing", "data", "transposed data", "load", "copy", "resume"])


class Weights(nn.Module):
    """Weight tensors of several shapes. A large one keeps everything, and a transposed one is not contiguous."""

    def __init__(self, tensors: list[tuple[tuple[int, ...], str]]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.kinds = [kind for _, kind in tensors]
        for number, (shape, kind) in enumerate(tensors):
            values = torch.randn(shape, generator=generator) * (100 if kind == "large" else 1)
            if kind == "transposed" and len(shape) == 2:
                values = values.t().contiguous().t()
            self.register_parameter(f"w{number}", nn.Parameter(values))

    def set_gradients(self, step: int) -> None:
        """Random ones, towards 0 and beyond, so that signs flip."""
        generator = torch.Generator().manual_seed(step)
        for parameter, kind in zip(self.parameters(), self.kinds, strict=True):
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.grad = None if kind == "without gradient" else parameter.detach() + 0.5 * noise


class Run:
    """A training of such weights, with something done to them half-way."""

    def __init__(self, method: str, tensors: list[tuple[tuple[int, ...], str]], small: int) -> None:
        self.method, self.tensors, self.small = method, tensors, small
        self.model: Weights
        self.optimizer: torch.optim.Optimizer
        self.pruner: flipout.Pruner

    def attached(self) -> tuple[Weights, torch.optim.Optimizer, flipout.Pruner]:
        model = Weights(self.tensors)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5)
        pruner = METHODS[self.method](model, optimizer, sparsity=0.6, steps=STEPS, include="*", compile=False)
        return model, optimizer, pruner

    def train(self, first: int, last: int) -> None:
        for step in range(first, last):
            self.model.set_gradients(step)
            self.optimizer.step()
            assert_masked(self.pruner)

    @torch.no_grad()
    def change(self, what: str) -> None:
        if what == "data":
            for parameter in self.model.parameters():
                parameter.data = parameter.data.clone()
        elif what == "transposed data":
            for parameter in self.model.parameters():
                parameter.data = parameter.data.mT.contiguous().mT if parameter.ndim > 1 else parameter.data
        elif what == "load":
            self.model.load_state_dict(copy.deepcopy(self.model.state_dict()))
        elif what == "copy":
            self.model, self.optimizer, self.pruner = copy.deepcopy((self.model, self.optimizer, self.pruner))
        elif what == "resume":
            saved = self.model.state_dict(), self.optimizer.state_dict(), self.pruner.state_dict()
            self.model, self.optimizer, self.pruner = self.attached()
            for thing, state in zip((self.model, self.optimizer, self.pruner), saved, strict=True):
                thing.load_state_dict(state)  # type: ignore[attr-defined]

    def finish(self, what: str) -> Run:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(groups, "SMALL", self.small)
            self.model, self.optimizer, self.pruner = self.attached()
            self.train(0, STEPS // 2)
            self.change(what)
            self.train(STEPS // 2, STEPS)
            assert_shared(self.pruner)
            self.gathers = any(isinstance(group, Gathered) for group in self.pruner.work.groups)
        return self


def assert_shared(pruner: flipout.Pruner) -> None:
    """What belongs to the elements of a group is a view of its memory."""
    for group in pruner.work.groups:
        for weight in group.weights:
            assert weight.mask.shape == weight.parameter.shape
        if isinstance(group, Gathered):
            storages = {weight.mask.untyped_storage().data_ptr() for weight in group.weights}
            assert storages == {group.mask.untyped_storage().data_ptr()}
            assert int(group.mask.sum()) == sum(int(weight.mask.sum()) for weight in group.weights)
            for name in ("low", "high"):
                if "flips" in group.weights[0].statistics:
                    states = [weight.statistics["flips"].state[name] for weight in group.weights]
                    assert len({state.untyped_storage().data_ptr() for state in states}) == 1


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(METHODS)), st.lists(st.tuples(SHAPES, KINDS), min_size=1, max_size=7), CHANGES)
def test_gathered_weights_train_like_single_ones(
    method: str, tensors: list[tuple[tuple[int, ...], str]], change: str
) -> None:
    tensors = [((6, 6), "plain"), *tensors]  # something to prune
    together, alone = (Run(method, tensors, small).finish(change) for small in (groups.SMALL, 0))
    assert not alone.gathers
    assert together.pruner.events == alone.pruner.events
    noisy = together.pruner.noise is not None
    for name, mask in alone.pruner.masks.items():
        assert torch.equal(together.pruner.masks[name], mask), name
        one, other = (run.model.get_parameter(name).detach() for run in (together, alone))
        tolerance: Any = {"rtol": 1e-4, "atol": 1e-5} if noisy or method == "second chances" else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(one, other, **tolerance)
    if "flips" in alone.pruner.statistics:
        for name, flips in alone.pruner.statistics["flips"].items():
            assert torch.equal(together.pruner.statistics["flips"][name], flips), name


def hand_made(*shapes: tuple[int, ...]) -> list[flipout.weights.Weight]:
    model = Weights([(shape, "plain") for shape in shapes])
    return [flipout.weights.Weight(name, model, p, i) for i, (name, p) in enumerate(model.named_parameters())]


def test_sums_and_spread_numbers_belong_to_each_weight() -> None:
    weights = hand_made((3, 4), (5,), (2, 2, 2))
    group = Gathered(weights)
    group.load()
    sums = group.sums_of_rows(group.values.sum(1))
    torch.testing.assert_close(sums, torch.stack([weight.local.sum() for weight in weights]))
    spread = group.spread(torch.tensor([1.0, 2.0, 3.0])).expand_as(group.values)
    assert [each.unique().tolist() for each in group._views(spread.contiguous())] == [[1.0], [2.0], [3.0]]
    expected = [
        weights[0].local.sum(1, keepdim=True).expand(3, 4),
        weights[1].local.sum().expand(5),
        weights[2].local.sum((1, 2), keepdim=True).expand(2, 2, 2),
    ]
    torch.testing.assert_close(group._views(group.sums_of_units(group.values)), expected)


def test_values_and_gradients_are_written_back() -> None:
    weights = hand_made((3, 4), (5,), (2, 2))
    for weight in weights[:2]:
        weight.parameter.grad = torch.ones_like(weight.parameter)
    group = Gathered(weights)
    with torch.no_grad():
        group.load()
        group.values.mul_(2)
        before = [weight.local.clone() for weight in weights]
        group.store()
        grads = group.load_grads()
        assert grads is not None
        assert [each.unique().tolist() for each in group._views(grads)] == [[1.0], [1.0], [0.0]]
        grads.mul_(3)
        group.store_grads()
    for weight, old in zip(weights, before, strict=True):
        assert torch.equal(weight.local, 2 * old)
    assert [None if w.grad is None else w.grad.unique().tolist() for w in weights] == [[3.0], [3.0], None]


def test_large_and_odd_weights_stand_alone() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(300, 300), nn.Linear(8, 8), nn.Conv2d(2, 2, 3), nn.Linear(4, 4))
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.5, steps=10)
    assert [[weight.name for weight in group.weights] for group in pruner.work.groups] == [
        ["0.weight", "2.weight", "4.weight"],
        ["1.weight"],
        ["3.weight"],
    ]


def test_tensor_layouts_of_a_state_do_not_depend_on_the_groups() -> None:
    """A saved state holds tensors of their own, not a whole buffer each."""
    run = Run("flips and noise", [((5, 7), "plain"), ((3, 3), "plain")], groups.SMALL).finish("nothing")
    state = run.pruner.state_dict()

    def check(tensors: Any) -> None:
        if isinstance(tensors, Tensor):
            assert tensors.untyped_storage().nbytes() == tensors.nbytes
        elif isinstance(tensors, dict):
            for each in tensors.values():
                check(each)

    check(state)
