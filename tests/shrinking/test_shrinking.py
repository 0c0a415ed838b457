"""Shrinking as a user sees it: the loop, references, checkpoints, copies, and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import flipout
from flipout.statistics import Place, Statistic

from .networks import batch, build, parts_in_network, set_aside, step

STEPS = 60
pytestmark = [
    pytest.mark.filterwarnings("ignore::flipout.DeadLayerWarning", "ignore::flipout.UnfinishedWarning"),
    pytest.mark.usefixtures("_free_shrinks"),
]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-3)


def attached(
    network: str = "plain", method: Callable[..., flipout.Pruner] = flipout.GlobalMagnitude, **options: Any
) -> tuple[nn.Module, torch.optim.Optimizer, flipout.Pruner]:
    model = build(network)
    optimizer = sgd(model)
    options = {"sparsity": 0.97, "steps": STEPS, **options}
    return model, optimizer, method(model, optimizer, **options)


def run(
    model: nn.Module, optimizer: torch.optim.Optimizer, pruner: flipout.Pruner, first: int = 0, last: int = STEPS
) -> list[float]:
    """The loop of the documentation."""
    losses = []
    for number in range(first, last):
        losses.append(step(model, optimizer, number))
        if pruner.worth_shrinking:
            model = pruner.shrink(batch(number)[0])
    return losses


def test_the_loop_of_the_documentation_shrinks_and_expands() -> None:
    model, optimizer, pruner = attached()
    before, shapes = pruner.prunable, {name: tensor.shape for name, tensor in model.state_dict().items()}
    plan = pruner.plan()
    run(model, optimizer, pruner)
    assert pruner.shrunk
    assert 1 <= len(pruner.shrinks) < 10
    assert pruner.computed == pruner.shrinks[-1].weights < before / 2
    assert pruner.computed == sum(weight.parameter.numel() for weight in pruner.weights)
    assert pruner.prunable == before
    assert pruner.plan() == plan
    assert pruner.nonzero == round(before * 0.03)
    assert pruner.sparsity == 1 - pruner.nonzero / before
    assert pruner.summary().weights == before
    assert not pruner.lost_zeros()
    pruner.check()
    images = batch(7)[0]
    small = model.eval()(images)
    assert pruner.expand() is model
    assert {name: tensor.shape for name, tensor in model.state_dict().items()} == shapes
    torch.testing.assert_close(model(images), small)
    pruner.check()
    assert sum(int(torch.count_nonzero(weight.parameter)) for weight in pruner.weights) == pruner.nonzero
    assert pruner.computed == before


def test_references_stay_what_they_are() -> None:
    model, optimizer, pruner = attached()
    first = model[0]  # type: ignore[index]
    weight, called = first.weight, []
    optimizer.param_groups[0]["tag"] = "mine"
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
    last: nn.Module = model[-1]  # type: ignore[index]
    last.bias.register_post_accumulate_grad_hook(lambda b: called.append(b.shape))  # type: ignore[operator]
    run(model, optimizer, pruner, last=40)
    assert pruner.shrunk
    assert pruner.model is model
    assert first.weight is weight
    assert first.out_channels == len(weight) < 8
    assert optimizer.param_groups[0]["tag"] == "mine"
    assert any(each is weight for each in optimizer.param_groups[0]["params"])
    assert optimizer.state[weight]["momentum_buffer"].shape == weight.shape
    assert called[-1] == last.bias.shape
    scheduler.step()
    run(model, optimizer, pruner, 40, 41)
    pruner.expand()
    assert weight.shape == (8, 2, 3, 3)
    assert len(optimizer.param_groups[0]["params"]) == len(list(model.parameters()))
    assert set(optimizer.state) == set(model.parameters())


@pytest.mark.parametrize("network", ["plain", "grouped"])
def test_a_resumed_run_is_the_same_bit_for_bit(network: str) -> None:
    def fresh() -> tuple[nn.Module, torch.optim.Optimizer, flipout.Pruner]:
        model = build(network).float()
        optimizer = torch.optim.AdamW(model.parameters(), 0.01, weight_decay=0.05)
        return model, optimizer, flipout.PaperFlipOut(model, optimizer, sparsity=0.97, steps=STEPS, compile=False)

    def save(parts: tuple[nn.Module, torch.optim.Optimizer, flipout.Pruner]) -> Any:
        with parts[2].expanded():
            return copy.deepcopy([part.state_dict() for part in parts])

    def go(parts: tuple[nn.Module, torch.optim.Optimizer, flipout.Pruner], first: int, last: int) -> None:
        model, optimizer, pruner = parts
        for number in range(first, last):
            images, labels = batch(number)
            nn.functional.cross_entropy(model(images.float()), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            if pruner.worth_shrinking:
                pruner.shrink(images.float())

    parts = fresh()
    saved = {}
    for number in range(STEPS):
        go(parts, number, number + 1)
        saved[number + 1] = save(parts)
    assert set_aside(parts[2])
    for start in (15, 24, 45):
        again = fresh()
        every: Sequence[Any] = again
        for part, state in zip(every, saved[start], strict=True):
            part.load_state_dict(state)
        assert again[2].computed == _computed_at(parts[2], start)
        go(again, start, STEPS)
        for one, other in zip(save(again), saved[STEPS], strict=True):
            assert_same(one, other)


def _computed_at(pruner: flipout.Pruner, step: int) -> int:
    return next((shrink.weights for shrink in reversed(pruner.shrinks) if shrink.step <= step), pruner.prunable)


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    elif isinstance(one, Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


def test_a_shrunk_network_is_saved_expanded() -> None:
    model, optimizer, pruner = attached()
    run(model, optimizer, pruner, last=40)
    with pytest.raises(RuntimeError, match=r"with pruner\.expanded"):
        pruner.state_dict()
    small = pruner.computed
    with pruner.expanded() as whole:
        assert whole is model
        assert pruner.computed == pruner.prunable
        state = pruner.state_dict()
        with pruner.expanded():
            assert_same(pruner.state_dict(), state)
    assert pruner.computed == small
    with pytest.raises(RuntimeError, match="size mismatch"):
        attached()[2].load_state_dict(state).model.load_state_dict(build("plain").state_dict())


def test_a_state_that_does_not_fit_is_refused() -> None:
    model, optimizer, pruner = attached()
    run(model, optimizer, pruner, last=40)
    small = pruner.computed
    with pruner.expanded():
        state = pruner.state_dict()
    for text, reason in (
        ("no JSON", "shrunk"),
        ('{"indices": {"9.weight": [[0]]}, "shrinks": [], "example": [], "batch": 1}', r"9\.weight"),
        ('{"indices": {"0.bias": [[99]]}, "shrinks": [], "example": [], "batch": 1}', r"0\.bias"),
    ):
        with pytest.raises(ValueError, match=reason):
            pruner.load_state_dict({**state, "shrunk": text})
        assert pruner.computed == small
    run(model, optimizer, pruner, 40)


def test_gradients_that_are_accumulated_are_cut_too() -> None:
    ends = []
    for shrinks in (True, False):
        model, optimizer, pruner = attached()
        run_without = [step(model, optimizer, number) for number in range(40)]
        for number in range(4):
            images, labels = batch(number)
            nn.functional.cross_entropy(model(images), labels).backward()
            if shrinks and number == 1:
                pruner.shrink(images)
        optimizer.step()
        ends.append((parts_in_network(pruner)["7.weight"], pruner.expand().state_dict()["7.weight"], run_without))
    (left, one, losses), (_, other, same_losses) = ends
    assert losses == same_losses
    torch.testing.assert_close(one[left], other[left], rtol=1e-9, atol=1e-10)


def test_a_moving_average_follows() -> None:
    ends = []
    for shrinks in (True, False):
        model, optimizer, pruner = attached()
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
        pruner.follow(average)
        for number in range(STEPS):
            step(model, optimizer, number)
            if shrinks and pruner.worth_shrinking:
                pruner.shrink(batch(0)[0])
            average.update_parameters(model)
        shrunk = pruner.shrunk
        pruner.expand()
        pruner.apply_to(average)
        ends.append((shrunk, average.eval()(batch(1)[0])))
    assert [shrunk for shrunk, _ in ends] == [True, False]
    torch.testing.assert_close(ends[0][1], ends[1][1], rtol=1e-9, atol=1e-10)


def test_only_a_whole_copy_can_follow() -> None:
    model, optimizer, pruner = attached()
    run(model, optimizer, pruner, last=40)
    with pytest.raises(ValueError, match=r"follow\(\)"):
        pruner.follow(copy.deepcopy(model))
    with pruner.expanded(), pytest.raises(ValueError, match=r"follow\(\)"):
        pruner.follow(nn.Linear(2, 2))


def test_a_copy_of_everything_goes_on_by_itself() -> None:
    model, optimizer, pruner = attached()
    run(model, optimizer, pruner, last=40)
    other, its_optimizer, its_pruner = copy.deepcopy((model, optimizer, pruner))
    assert its_pruner.computed == pruner.computed
    losses = run(other, its_optimizer, its_pruner, 40)
    assert losses == run(model, optimizer, pruner, 40)
    its_pruner.expand()
    assert its_pruner.computed == pruner.prunable > pruner.computed


def test_frozen_and_excluded_weights_lose_channels_too() -> None:
    model = build("plain")
    model[0].weight.requires_grad_(False)  # type: ignore[index]
    optimizer = sgd(model)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.97, steps=STEPS, exclude="12.weight")
    losses = run(model, optimizer, pruner)
    assert len(model[0].weight) < 8  # type: ignore[index]
    assert not model[0].weight.requires_grad  # type: ignore[index]
    assert losses[-1] < 10
    pruner.expand()


def test_dropout_does_not_prevent_shrinking() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 30), nn.ReLU(), nn.Dropout(0.5), nn.Linear(30, 4)).double()
    optimizer = sgd(model)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.97, steps=STEPS)
    run(model, optimizer, pruner)
    assert pruner.shrunk


def test_shrinking_draws_no_random_numbers() -> None:
    model, optimizer, pruner = attached()
    run(model, optimizer, pruner, last=35)
    pruner.expand()
    state = torch.get_rng_state()
    pruner.shrink(batch(0)[0])
    assert torch.equal(torch.get_rng_state(), state)


def test_removing_the_pruner_expands() -> None:
    model, optimizer, pruner = attached()
    run(model, optimizer, pruner)
    pruner.remove()
    assert not pruner.shrunk
    assert model[0].weight.shape == (8, 2, 3, 3)  # type: ignore[index]


def test_second_chances_shrink_when_the_masks_are_frozen() -> None:
    model, optimizer, pruner = attached(method=flipout.FlipOut)
    run(model, optimizer, pruner, last=41)
    assert not pruner.permanent
    with pytest.raises(ValueError, match=r"pruner\.permanent"):
        pruner.shrink(batch(0)[0])
    run(model, optimizer, pruner, 41)
    assert pruner.shrunk
    assert [shrink.step for shrink in pruner.shrinks] == [42]


@pytest.mark.parametrize("method", ["lottery", "deep-r"])
def test_methods_that_need_the_whole_network_say_so(method: str) -> None:
    model, optimizer, pruner = attached(method=flipout.METHODS[method])
    run(model, optimizer, pruner)
    assert not pruner.shrunk
    with pytest.raises(ValueError, match=type(pruner).__name__):
        pruner.shrink(batch(0)[0])


@pytest.mark.filterwarnings("ignore:shrink.. removed nothing")
@pytest.mark.parametrize("method", ["rigl", "lamp", "hoyer-square", "keep-zeros"])
def test_methods_shrink_when_their_masks_are_final(method: str) -> None:
    model, optimizer, pruner = attached(method=flipout.METHODS[method])
    run(model, optimizer, pruner)
    assert pruner.finished
    pruner.shrink(batch(0)[0])
    assert pruner.nonzero == sum(weight.kept for weight in pruner.weights)


class Odd(torch.optim.SGD):
    """Keeps a vector for each weight, of another shape."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["rows"] = torch.zeros(3, len(parameter))
        return super().step(closure)


class PerRow(Statistic):
    """Keeps a number for each row, which is not declared as shared."""

    def __init__(self, weight: Tensor, place: Place) -> None:
        super().__init__(weight, place)
        self.state["rows"] = torch.zeros(len(weight))

    def value(self, weight: Tensor, step: int) -> Tensor:
        return torch.ones_like(weight)


@flipout.criteria.elementwise
def by_row(weight: Tensor, rows: Tensor) -> Tensor:
    return weight.abs() * rows


def refused(kind: str) -> tuple[nn.Module, torch.optim.Optimizer, flipout.Pruner]:
    """A training that cannot be shrunk."""
    model = build("plain")
    optimizer = Odd(model.parameters(), 0.05) if kind == "optimizer state" else sgd(model)
    called: Any = torch.compile(model, backend="eager") if kind == "compiled" else model
    options: dict[str, Any] = {"sparsity": 0.9, "steps": STEPS}
    if kind == "hooks":
        model.register_forward_hook(lambda *_: None)
    if kind == "statistic":
        schedule = flipout.Geometric(0.9, STEPS)
        statistics = {"rows": PerRow}
        pruner = flipout.Pruner(model, optimizer, criterion=by_row, schedule=schedule, statistics=statistics)
    elif kind == "second pruner":
        pruner = flipout.GlobalMagnitude(model, optimizer, include="0.weight", **options)
        model.other = flipout.GlobalMagnitude(model, optimizer, exclude="0.weight", **options)  # type: ignore[assignment]
    else:
        pruner = flipout.GlobalMagnitude(called, optimizer, **options)
    if kind == "aim test":
        model.other = flipout.AimTest(model, optimizer)  # type: ignore[assignment]
    return model, optimizer, pruner


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("optimizer state", "Odd keeps rows"),
        ("compiled", "compiled"),
        ("statistic", "the statistic 'rows'"),
        ("second pruner", "another pruner"),
        ("aim test", "AimTest"),
        ("hooks", "hooks"),
    ],
)
def test_what_cannot_follow_is_refused_and_nothing_is_changed(kind: str, reason: str) -> None:
    model, optimizer, pruner = refused(kind)
    for number in range(40):
        step(model, optimizer, number)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match=reason):
        pruner.shrink(batch(0)[0])
    assert_same(dict(model.state_dict()), before)
    step(model, optimizer, 40)


def test_nothing_is_shrunk_before_the_first_step() -> None:
    _, _, pruner = attached()
    assert not pruner.worth_shrinking
    with pytest.raises(ValueError, match="no optimizer step was taken yet"):
        pruner.shrink(batch(0)[0])


def test_a_network_that_counts_its_channels_is_refused() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(72, 40), nn.Linear(40, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.first(x.flatten(1)).relu()) * self.first.out_features  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model = Counting().double()
    optimizer = sgd(model)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.97, steps=STEPS)
    for number in range(40):
        step(model, optimizer, number)
    with pytest.raises(ValueError, match="has different outputs"):
        pruner.shrink(batch(0)[0])
    assert model.first.out_features == 40
    step(model, optimizer, 40)
