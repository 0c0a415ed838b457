"""What happens only in training mode or in a method of the user's own: outputs, gradients, pruning events."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout
from flipout.channels.copies import UnsupportedNetworkError
from flipout.schedules import Pruning
from flipout.shrinking.trial import try_cut
from flipout.views.cut import Indices
from flipout.weights import Weight

from .perceptrons import EXAMPLE, STEPS, numbers, pruned, shapes, steps

pytestmark = [
    pytest.mark.filterwarnings("ignore::flipout.UnfinishedWarning", "ignore::flipout.DeadLayerWarning"),
    pytest.mark.usefixtures("_free_shrinks"),
]


class Featured(nn.Module):
    """Has another output while it is trained."""

    def __init__(self, extra: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head, self.other = nn.Linear(8, 32), nn.Linear(32, 4), nn.Linear(32, 4)
        self.extra = extra

    def forward(self, x: Tensor) -> Any:
        h = self.first(x).relu()
        if self.extra == "dropout":
            return self.head(nn.functional.dropout(h, 0.1, self.training))
        if not self.training or self.extra == "none":
            return self.head(h)
        second = {"features": h, "head": None, "loss": h.square().mean()}[self.extra]
        return self.head(h), self.other(h) if second is None else second


@pytest.mark.parametrize("extra", ["features", "head", "loss"])
def test_outputs_of_training_mode_are_compared(extra: str) -> None:
    model = Featured(extra)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.95, steps=STEPS, floor=6, exclude="other.*")
    for number in range(STEPS):
        x, labels = numbers(number)
        scores, _ = model(x)
        nn.functional.cross_entropy(scores, labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    before = shapes(model)
    with pytest.raises(ValueError, match="in training mode"):
        pruner.shrink(EXAMPLE)
    assert shapes(model) == before
    assert model.training


@pytest.mark.parametrize("extra", ["none", "dropout"])
def test_a_network_that_computes_the_same_in_training_mode_is_shrunk(extra: str) -> None:
    parts = model, _, pruner = pruned(Featured(extra), exclude="other.*")
    for parameter in model.other.parameters():  # type: ignore[union-attr]
        parameter.requires_grad_(False)
    steps(parts, 0, STEPS)
    pruner.shrink(EXAMPLE)
    assert pruner.computed < pruner.prunable


@torch.no_grad()
def test_rounding_that_batch_norms_enlarge_is_no_difference() -> None:
    """Channels that hardly vary in a batch are mostly rounding, and each norm enlarges it."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32)) for _ in range(7)]
    model, half = nn.Sequential(*blocks, nn.Sequential(nn.Linear(32, 4))), torch.arange(16)
    model.get_parameter("0.0.weight").mul_(1e-14)
    indices = dict[str, Indices]()
    for name, tensor in model.state_dict().items():
        sides = None if name.startswith("7") else half, None if name.startswith("0") else half
        if tensor.ndim:
            indices[name] = sides[: tensor.ndim]
        if tensor.ndim > 1 and sides[1] is not None:
            tensor[:, 16:] = 0  # nothing reads these channels
    try_cut(model, indices, {}, ((torch.randn(8, 32),), {}))


class MixesInTraining(nn.Sequential):
    def forward(self, x: Tensor) -> Any:
        x = super().forward(x)
        return x + x.mean(-1, keepdim=True) if self.training else x


@pytest.mark.parametrize("gain", [1.0, 0.1, 0.01])
def test_a_difference_does_not_fade_behind_norms_of_small_numbers(gain: float) -> None:
    """A batch norm makes the size of the weights before it irrelevant, so they may be small."""
    torch.manual_seed(0)
    first = MixesInTraining(nn.Linear(8, 16), nn.BatchNorm1d(16))
    blocks = [nn.Sequential(nn.Linear(16, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU()) for _ in range(8)]
    model, half = nn.Sequential(first, *blocks, nn.Linear(16, 4)), torch.arange(8)
    for number in range(1, 9):
        model.get_parameter(f"{number}.0.weight").data.mul_(gain)
        nn.init.normal_(model.get_parameter(f"{number}.1.bias"))
    model.get_parameter("1.0.weight").data[:, 8:] = 0
    indices = {
        name: (half, None) if tensor.ndim > 1 else (half,)
        for name, tensor in model.state_dict().items()
        if name.startswith("0.") and tensor.ndim
    } | {"1.0.weight": (None, half)}
    with pytest.raises(UnsupportedNetworkError, match="in training mode"):
        try_cut(model, indices, {}, ((torch.randn(8, 8),), {}))


class OwnScore(flipout.GlobalMagnitude):
    def score(self, weight: Weight) -> Tensor:
        values = weight.local.detach()
        return torch.div(values.abs(), values[weight.mask].square().mean().sqrt())


class OwnKeep(flipout.GlobalMagnitude):
    def keep(self, pruning: Pruning) -> int:
        return super().keep(pruning)


class OwnPrune(flipout.GlobalMagnitude):
    def prune(self, pruning: Pruning) -> None:
        super().prune(pruning)


@pytest.mark.parametrize("method", [OwnScore, OwnKeep, OwnPrune])
def test_own_events_are_shrunk_when_they_are_over(method: type[flipout.Pruner]) -> None:
    parts = model, _, pruner = pruned(method=method)
    steps(parts, 0, STEPS // 4)
    assert not pruner.worth_shrinking
    with pytest.raises(ValueError, match=r"Own\w+ .*Wait until pruner\.finished"):
        pruner.shrink(EXAMPLE)
    steps(parts, STEPS // 4, STEPS)
    assert pruner.finished
    assert pruner.worth_shrinking
    pruner.shrink(EXAMPLE)
    assert shapes(model)[0][0] < 32


def test_clipping_sees_the_same_gradients_in_a_shrunk_network() -> None:
    """RigL needs the gradients of pruned weights, until its masks are final."""
    losses: dict[bool, list[float]] = {}
    for shrinks in (False, True):
        model, optimizer, pruner = pruned(method=flipout.RigL, sparsity=0.9)
        losses[shrinks] = []
        for number in range(STEPS):
            x, labels = numbers(number)
            loss = nn.functional.cross_entropy(model(x), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            optimizer.zero_grad()
            losses[shrinks].append(loss.item())
            if shrinks and pruner.finished and not pruner.shrinks:
                pruner.shrink(x)
        assert bool(pruner.shrinks) == shrinks
    assert losses[True] == pytest.approx(losses[False], rel=1e-4)


class Regularized(nn.Module):
    """Adds a term to its output while it is trained, which reads all channels, beside something random."""

    def __init__(self, noise: str, *, reads: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head, self.noise, self.reads = nn.Linear(8, 32), nn.Linear(32, 4), noise, reads

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        if not self.training:
            return self.head(h)  # type: ignore[no-any-return]
        term = 1e-3 * h.square().mean() if self.reads else torch.zeros(())
        noisy = {
            "dropout": lambda: nn.functional.dropout(h, 0.2),
            "normal": lambda: h + 0.1 * torch.randn_like(h),
            "channels": lambda: nn.functional.dropout1d(h[:, :, None], 0.2)[:, :, 0],
            "gumbel": lambda: h + 0 * nn.functional.gumbel_softmax(x)[:, :1],
        }[self.noise]()
        return self.head(noisy) + term  # type: ignore[no-any-return]


@pytest.mark.parametrize("noise", ["dropout", "normal", "channels", "gumbel"])
def test_random_parts_do_not_hide_what_a_training_reads(noise: str) -> None:
    for reads in (True, False):
        parts = model, _, pruner = pruned(Regularized(noise, reads=reads))
        steps(parts, 0, STEPS)
        state = torch.get_rng_state()
        if reads:
            with pytest.raises(ValueError, match="in training mode"):
                pruner.shrink(EXAMPLE)
        else:
            pruner.shrink(EXAMPLE)
        assert torch.equal(torch.get_rng_state(), state)
        assert pruner.shrunk != reads
        assert model.training


class Split(nn.Module):
    """Can be asked for its features, and its two halves can be called by themselves."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.head = nn.Sequential(nn.Linear(8, 32), nn.ReLU()), nn.Linear(32, 4)

    def forward(self, x: Tensor, features: bool = False) -> Any:
        h = self.encoder(x)
        return (self.head(h), h) if features else self.head(h)


def outputs_of(model: Any, x: Tensor, how: str) -> tuple[Tensor, Tensor]:
    """The scores, and a term that reads the features."""
    if how == "features":
        scores, h = model(x, features=True)
        return scores, h.square().mean()
    term = model.encoder(x).square().mean() if how == "encoder" else torch.zeros(())
    with torch.no_grad():
        model.head(model.encoder(x))  # only looks
    if how == "checkpoint":
        return torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False), term
    return model(x), term


def loop(how: str, first: int, last: int, parts: Any, *, asks: bool) -> None:
    model, optimizer, pruner = parts
    for number in range(first, last):
        x, labels = numbers(number)
        optimizer.zero_grad()
        scores, term = outputs_of(model, x, how)
        (nn.functional.cross_entropy(scores, labels) + 1e-3 * term).backward()
        optimizer.step()
        if asks and pruner.worth_shrinking:
            pruner.shrink(x)


@pytest.mark.parametrize(("how", "subject"), [("features", "features"), ("encoder", "encoder")])
def test_a_loop_that_reads_more_than_the_example_shows_is_not_shrunk(how: str, subject: str) -> None:
    parts = model, _, pruner = pruned(Split())
    with pytest.warns(flipout.NotShrunkWarning, match=subject):
        loop(how, 0, STEPS, parts, asks=True)
    assert not pruner.shrinks
    with pytest.raises(ValueError, match=subject):
        pruner.shrink(EXAMPLE)
    assert shapes(model) == shapes(Split())


@pytest.mark.parametrize(("how", "subject"), [("features", "features"), ("encoder", "encoder")])
def test_a_loop_that_reads_more_is_stopped_in_the_first_step_after_a_shrink_without_a_question(
    how: str, subject: str
) -> None:
    parts = model, _, pruner = pruned(Split())
    loop(how, 0, STEPS // 2, parts, asks=False)
    pruner.shrink(EXAMPLE)
    with pytest.raises(RuntimeError, match=rf"{subject}.*pruner\.expand\(\)"):
        loop(how, STEPS // 2, STEPS, parts, asks=False)
    pruner.expand()
    loop(how, STEPS // 2, STEPS, parts, asks=False)
    assert shapes(model) == shapes(Split())


@pytest.mark.parametrize("how", ["model", "checkpoint"])
def test_a_loop_that_calls_the_model_is_shrunk_and_the_model_has_no_hooks_after_it(how: str) -> None:
    parts = model, _, pruner = pruned(Split())
    loop(how, 0, STEPS, parts, asks=True)
    assert pruner.shrinks
    pruner.remove()
    assert not any(module._forward_pre_hooks for module in model.modules())
