"""Every method on a device that is not the CPU: no mixed devices, the masks of the CPU, and hardly any host syncs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import flipout
from flipout.ranking import smallest
from tests.devices.fake_device import FactoriesOnDevice, FakeTensorOnDevice, device, syncs
from tests.helpers import batches, cross_entropy, make, mlp, sgd

METHODS = [name for name in flipout.METHODS if name not in ("dense", "keep-zeros")]
PER_EVENT = 8
"""Host syncs that one pruning event may make, however many layers there are. (GraNet ranks three times.)"""


@pytest.fixture(autouse=True)
def fake_device() -> Iterator[None]:
    with FactoriesOnDevice():
        yield


def to_device(x: Tensor) -> Tensor:
    return x.to(device())


def deep_mlp(layers: int) -> nn.Sequential:
    """A network with any number of layers to prune."""
    torch.manual_seed(0)
    hidden = [module for _ in range(layers - 2) for module in (nn.Linear(12, 12), nn.Tanh())]
    return nn.Sequential(nn.Linear(12, 12), nn.Tanh(), *hidden, nn.Linear(12, 4))


class Run:
    """A training on a device, with the host syncs of each step."""

    def __init__(
        self, method: str, model: nn.Module, move: Callable[[Tensor], Tensor], steps: int = 20, **options: Any
    ) -> None:
        self.move, self.steps = move, steps
        self.model = model.to(move(torch.zeros(1)).device)
        self.dtype = next(model.parameters()).dtype
        self.optimizer = sgd(self.model)
        data = [(move(x.to(self.dtype)), move(y)) for x, y in batches(2, seed=9)]
        options = {"compile": False, **options}  # on the CPU, loops in C have their own order of sums
        self.pruner = make(method, self.model, self.optimizer, data=data, steps=steps, **options)
        self.ordinary: list[list[str]] = []
        self.pruning: list[list[str]] = []

    def train(self, steps: int, skip: int = 0) -> Run:
        penalty = self.pruner.penalty if isinstance(self.pruner, flipout.HoyerSquare) else None
        for number, (x, y) in enumerate(batches(steps)):
            if number < skip:
                continue
            events = len(self.pruner.events)
            with syncs.counted() as waits:
                self.optimizer.zero_grad()
                loss = cross_entropy(self.model(self.move(x.to(self.dtype))), self.move(y))
                (loss if penalty is None else loss + penalty()).backward()
                self.optimizer.step()
            if number in (0, self.steps - 1):
                continue  # the first and the last step also compare weights with masks, once in a training
            (self.ordinary if len(self.pruner.events) == events else self.pruning).append(waits)
        return self

    @property
    def masks(self) -> dict[str, Tensor]:
        return {name: mask.cpu() for name, mask in self.pruner.masks.items()}

    @property
    def weights(self) -> list[Tensor]:
        return [parameter.detach().cpu() for parameter in self.model.parameters()]


def assert_same(one: Run, other: Run) -> None:
    assert one.pruner.events == other.pruner.events
    for name, mask in one.masks.items():
        assert torch.equal(mask, other.masks[name]), name
    for left, right in zip(one.weights, other.weights, strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize(
    ("method", "options"),
    [(method, {}) for method in METHODS]
    + [
        pytest.param(method, options, marks=pytest.mark.slow)
        for method in ("flipout", "deep-r")
        for options in ({"scope": "layer"}, {"floor": 3})
    ],
    ids=str,
)
def test_every_method_does_on_a_device_what_it_does_on_the_cpu(method: str, options: dict[str, Any]) -> None:
    there = Run(method, mlp(), to_device, **options).train(20)
    assert all(type(parameter.data) is FakeTensorOnDevice for parameter in there.model.parameters())
    assert all(type(mask) is FakeTensorOnDevice for mask in there.pruner.masks.values())
    here = Run(method, mlp(), lambda x: x, **options).train(20)
    assert there.pruner.nonzero == 35
    assert_same(there, here)
    for waits in there.pruning:
        assert len(waits) <= PER_EVENT, waits
    for waits in there.ordinary:  # Deep-R replaces what went dormant at every step, so it reads how many that are
        assert waits == (["tolist"] if method == "deep-r" else [])


@pytest.mark.parametrize("options", [{}, {"scope": "layer"}, {"floor": 3}], ids=str)
@pytest.mark.parametrize("method", ["flipout", "hoyer-square"])
def test_host_syncs_do_not_depend_on_the_number_of_layers(method: str, options: dict[str, Any]) -> None:
    few, many = (Run(method, deep_mlp(n), to_device, steps=5, **options).train(5) for n in (2, 12))
    assert len(few.pruning) == len(many.pruning) > 0
    for run in (few, many):  # not always the same number: nothing is ranked where no weight can come back
        assert max(len(waits) for waits in run.pruning) <= PER_EVENT


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", ["flipout", "magnitude-uncertainty", "deep-r"])
def test_other_precisions(method: str, dtype: torch.dtype) -> None:
    there, here = (Run(method, mlp().to(dtype), move).train(20) for move in (to_device, lambda x: x))
    assert there.pruner.nonzero == 35
    assert_same(there, here)


@pytest.mark.parametrize("method", METHODS)
def test_a_state_from_the_cpu_continues_on_a_device(method: str) -> None:
    options: dict[str, Any] = {"rewind_to": None} if method == "lottery" else {}
    whole = Run(method, mlp(), lambda x: x, **options).train(20)
    first = Run(method, mlp(), lambda x: x, **options).train(7)
    second = Run(method, mlp(seed=1), to_device, **options)
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.pruner.load_state_dict(first.pruner.state_dict())
    assert_same(second.train(20, skip=7), whole)


def test_snip_moves_its_batches_to_the_device() -> None:
    class Pair(NamedTuple):
        inputs: dict[str, Any]
        targets: list[Tensor]

    model = mlp().to(device())
    x, y = next(batches(1))

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = model

        def forward(self, inputs: dict[str, Any]) -> Tensor:
            assert inputs["note"] == "stays as it is"
            output: Tensor = self.body(inputs["x"][0])
            return output

    reader = Reader()
    pruner = flipout.SNIP(
        reader,
        sgd(reader),
        sparsity=0.9,
        steps=10,
        batches=[Pair({"x": (x,), "note": "stays as it is"}, [y])],
        loss_fn=lambda output, targets: cross_entropy(output, targets[0]),
    )
    assert pruner.nonzero == 35


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_the_smallest_scores_with_ties(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randint(-4, 4, (50,), generator=generator).to(dtype) for _ in range(3)]
    masks = [torch.rand(50, generator=generator) < 0.7 for _ in tensors]
    ranked = sorted((float(t[j]), i, j) for i, t in enumerate(tensors) for j in range(50) if masks[i][j])
    for count in (1, 20, 50, len(ranked)):
        expected = [torch.zeros(50, dtype=torch.bool) for _ in tensors]
        for _, i, j in ranked[:count]:
            expected[i][j] = True
        there, candidates = [to_device(t) for t in tensors], [to_device(mask) for mask in masks]
        candidates[1], there[1] = masks[1], tensors[1]  # one of them on the CPU
        chosen = smallest(lambda i, there=there: there[i], candidates, count, dtype=dtype)  # type: ignore[misc]
        assert all(torch.equal(mark.cpu(), wanted) for mark, wanted in zip(chosen, expected, strict=True))


def test_scores_that_are_not_finite_name_their_layer() -> None:
    for options in ({}, {"scope": "layer"}, {"floor": 3}):
        run = Run("magnitude", mlp(), to_device, **options)
        with torch.no_grad():
            run.model.get_parameter("2.weight")[0, 0] = float("nan")
        run.optimizer.step()  # without gradients, so that the NaN stays where it is
        with pytest.raises(FloatingPointError, match=r"2\.weight has NaN"):
            run.optimizer.step()


def test_the_device_refuses_and_counts() -> None:
    """The fake device itself."""
    there, here = to_device(torch.arange(4.0)), torch.ones(4)
    with pytest.raises(RuntimeError, match="same device"):
        there + here
    assert (there + torch.ones(())).device == there.device
    mask = there > 1
    readings: dict[str, Callable[[], Any]] = {
        "item": lambda: there[0].item(),
        "bool": lambda: bool(there[0]),
        "int": lambda: int(there[0]),
        "float": lambda: float(there[0]),
        "list": there.tolist,
        "cpu": there.cpu,
        "nonzero": there.nonzero,
        "masked_select": functools.partial(there.masked_select, mask),
        "boolean index": lambda: there[mask],
        "equal": lambda: torch.equal(there, there),
        "bincount": there.long().bincount,
    }
    for name, read in readings.items():
        with syncs.counted() as waits:
            read()
        assert len(waits) == 1, name
    with syncs.counted() as waits:
        there.sum().sqrt().mul_(there.max())
        there.masked_fill_(mask, 0)
    assert not waits
