"""Batches of every kind, and what happens to bad ones: a clear error, and the model as it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import flipout

from .networks import Residual, images, perceptron, same, state, vectors


class Keywords(nn.Module):
    """A network that is called as those of Hugging Face are."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(12, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, scale: Tensor | None = None) -> dict[str, Tensor]:
        hidden = self.first(x).relu()
        return {"logits": self.second(hidden if scale is None else hidden * scale)}


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(12, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out: Tensor = self.layer(x + y)
        return out


def generator() -> Iterator[Tensor]:
    yield from vectors()


def labelled() -> list[tuple[Tensor, Tensor]]:
    return [(x, torch.zeros(len(x), dtype=torch.int64)) for x in vectors()]


@pytest.mark.parametrize(
    "batches",
    [
        generator(),
        labelled(),
        [[x, 7] for x in vectors()],
        torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.cat(vectors())), 32),
    ],
)
def test_the_same_inputs_in_every_form_give_the_same_network(batches: Any) -> None:
    model, expected = perceptron(), perceptron()
    flipout.prune(model, batches, sparsity=0.5, rounds=2)
    flipout.prune(expected, vectors(), sparsity=0.5, rounds=2)
    assert same(model, state(expected))


def test_dictionaries_and_several_inputs() -> None:
    model = Keywords()
    batches = [{"x": x, "labels": torch.zeros(len(x))} for x in vectors()]
    assert flipout.prune(model, batches, sparsity=0.5).sparsity == 0.5
    two = TwoInputs()
    assert flipout.prune(two, [(x, x, 3) for x in vectors()], sparsity=0.5).sparsity == 0.5
    two = TwoInputs()
    assert flipout.prune(two, [((x, x), 3) for x in vectors()], sparsity=0.5).sparsity == 0.5


def loader(**options: Any) -> torch.utils.data.DataLoader[tuple[Tensor, ...]]:
    data = torch.utils.data.TensorDataset(torch.cat(vectors()))
    return torch.utils.data.DataLoader(data, 30, shuffle=True, **options)


def test_a_loader_that_shuffles() -> None:
    model, expected = perceptron(), perceptron()
    random = torch.get_rng_state()
    flipout.prune(model, loader(), sparsity=0.5)
    assert torch.equal(torch.get_rng_state(), random)
    flipout.prune(expected, list(loader()), sparsity=0.5)
    assert same(model, state(expected))
    # With an order of its own in each pass, every pass starts at the inputs: nothing is kept of blocks.
    assert flipout.prune(perceptron(), loader(generator=torch.Generator()), sparsity=0.5).sparsity == 0.5


class Changing:
    """Batches of which the last one is another one every time."""

    def __iter__(self) -> Iterator[Tensor]:
        self.number = getattr(self, "number", 0) + 1
        yield from vectors()
        yield vectors(seed=self.number)[0]


def test_a_batch_that_changes_is_refused_where_outputs_of_blocks_are_kept() -> None:
    model = perceptron()
    before = state(model)
    with pytest.raises(ValueError, match="list"):
        flipout.prune(model, Changing(), sparsity=0.5)
    assert same(model, before)


def test_one_tensor_is_one_batch() -> None:
    assert flipout.prune(perceptron(), vectors()[0], sparsity=0.5).sparsity == 0.5


class Unread:
    """Batches that can be read only once, without saying so."""

    def __init__(self) -> None:
        self.batches = iter(vectors())

    def __iter__(self) -> Iterator[Tensor]:
        yield from self.batches


NAN = [*vectors(), torch.full((4, 12), torch.nan)]


@pytest.mark.parametrize(
    ("batches", "options", "error", "message"),
    [
        ([], {}, ValueError, "no calibration batches"),
        (iter([]), {}, ValueError, "no calibration batches"),
        (Unread(), {}, ValueError, "read"),
        ([torch.zeros(3, 5)], {}, ValueError, r"batch 0 .*\(3, 5\)"),
        ([*vectors(), torch.zeros(3, 5)], {}, ValueError, r"batch 4 .*\(3, 5\)"),
        (NAN, {}, FloatingPointError, r"0\.weight"),
        (NAN, {"method": "wanda"}, FloatingPointError, r"0\.weight"),
        ([3, 4], {}, TypeError, "int"),
        (vectors(), {"method": "fisher"}, ValueError, "loss_fn"),
        (vectors(), {"method": "fisher", "loss_fn": functional.cross_entropy}, ValueError, "target"),
        (vectors(), {"method": "nothing"}, ValueError, "nothing"),
        (vectors(), {"scope": "all"}, ValueError, "scope"),
        (vectors(), {"scope": "output", "granularity": (2, 2)}, ValueError, "scope"),
        (vectors(), {"sparsity": {"9": 0.5}}, ValueError, "9"),
        (vectors(), {"sparsity": 1.5}, ValueError, "1.5"),
        (vectors(), {"granularity": "3:5"}, ValueError, "3:5"),
        (vectors(), {"granularity": "2:4", "sparsity": 0.75}, ValueError, "sparsity"),
        (vectors(), {"rounds": 0}, ValueError, "rounds"),
        (vectors(), {"include": "0.bias"}, ValueError, r"0\.bias"),
    ],
)
def test_an_error_says_what_is_wrong_and_leaves_the_model(
    batches: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    model = perceptron()
    before, modes = state(model), [module.training for module in model.modules()]
    with pytest.raises(error, match=message):
        flipout.prune(model, batches, **{"sparsity": 0.5, **options})
    assert same(model, before)
    assert [module.training for module in model.modules()] == modes
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_failure_in_the_last_layer_restores_the_first() -> None:
    model = Residual()
    before = state(model)
    with torch.no_grad():
        model.head.weight[0, 0] = torch.nan
    before["head.weight"] = model.head.weight.detach().clone()
    with pytest.raises(FloatingPointError, match=r"head\.weight"):
        flipout.prune(model, images(), sparsity=0.5, scope="layer", method="wanda")
    assert torch.equal(model.stem.weight, before["stem.weight"])
    assert torch.equal(model.norm1.running_mean, before["norm1.running_mean"])  # type: ignore[arg-type]


def test_an_interruption_restores_the_model() -> None:
    model = perceptron()
    before = state(model)

    def interrupt(done: int, total: int, name: str) -> None:
        assert total == 3
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        flipout.prune(model, vectors(), sparsity=0.5, progress=interrupt)
    assert same(model, before)


def test_a_layer_that_no_batch_reaches_is_named() -> None:
    model = perceptron()
    model.spare = nn.Linear(3, 3)
    model.forward = lambda x: nn.Sequential(*list(model)[:5])(x)  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"spare\.weight"):
        flipout.prune(model, vectors(), sparsity=0.5)
    assert flipout.prune(model, vectors(), sparsity=0.5, exclude="spare").sparsity == 0.5


def test_norms_and_modes_after_pruning() -> None:
    model = Residual().train()
    model.conv.eval()
    before = state(model)
    report = flipout.prune(model, images(), sparsity=0.5)
    assert report.recalibrated == 3
    assert model.training
    assert not model.conv.training
    assert not torch.equal(model.norm1.running_mean, before["norm1.running_mean"])  # type: ignore[arg-type]
    model = Residual()
    flipout.prune(model, images(), sparsity=0.5, recalibrate=False)
    assert torch.equal(model.norm1.running_mean, before["norm1.running_mean"])  # type: ignore[arg-type]
