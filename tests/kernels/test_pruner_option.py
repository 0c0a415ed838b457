"""`sparse_kernels=` of a pruner, together with everything else that a pruner can do."""

from __future__ import annotations

import copy
import io
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import flipout
from flipout.kernels import MissingKernelsWarning, SparseKernelsWarning, library, machine_memory
from flipout.kernels.machine_memory import remembered

from .networks import ConvNet, batch, on_every_density, pruned, step

Parts = tuple[Any, ...]
WAYS: dict[str, dict[str, Any]] = {
    "permanent": {"method": flipout.GlobalMagnitude},
    "with noise": {"method": flipout.PaperFlipOut},
    "second chances": {"method": flipout.FlipOut},
    "of channels": {"method": flipout.GlobalMagnitude, "granularity": "kernel"},
    "dead first": {"method": flipout.GlobalMagnitude, "dead_first": True},
}


def train(parts: Parts, first: int, last: int) -> None:
    for number in range(first, last):
        step(parts[0], parts[1], number)


def through_a_file(states: list[Any]) -> list[Any]:
    file = io.BytesIO()
    torch.save(states, file)
    file.seek(0)
    loaded: list[Any] = torch.load(file, weights_only=True)
    return loaded


def assert_same_bits(one: nn.Module, other: nn.Module) -> None:
    for (name, tensor), expected in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(tensor, expected), name


@pytest.mark.parametrize("way", WAYS)
def test_a_training_that_is_resumed_at_any_step_has_the_same_bits(way: str) -> None:
    whole = pruned(True, **WAYS[way])
    saved = []
    for number in range(12):
        step(whole[0], whole[1], number)
        saved.append(through_a_file([part.state_dict() for part in whole[:3]]))
    assert len(whole[3].layers) == 5
    for steps in (1, 4, 8, 11):
        resumed = pruned(True, seed=1, **WAYS[way])
        for part, state in zip(resumed[:3], saved[steps - 1], strict=True):
            part.load_state_dict(state)
        train(resumed, steps, 12)
        assert_same_bits(resumed[0], whole[0])
        assert resumed[3].layers == whole[3].layers


def shrinking_parts() -> Parts:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Conv2d(24, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(400, 4)
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = flipout.OneShot(0.97, 8)
    options: Any = {"sparsity": 0.97, "steps": 8, "schedule": schedule, "compile": False, "sparse_kernels": True}
    pruner = flipout.GlobalMagnitude(model, optimizer, **options)
    return model, optimizer, pruner, on_every_density(pruner)


def test_a_shrunk_training_is_resumed_with_the_same_bits() -> None:
    whole = shrinking_parts()
    train(whole, 0, 5)
    whole[2].shrink(batch(0)[0])
    assert whole[2].shrunk
    train(whole, 5, 6)
    with whole[2].expanded():
        saved = through_a_file([part.state_dict() for part in whole[:3]])
    train(whole, 6, 8)
    resumed = shrinking_parts()
    for part, state in zip(resumed[:3], saved, strict=True):
        part.load_state_dict(state)
    assert resumed[2].shrunk
    assert len(resumed[3].layers) == 3
    train(resumed, 6, 8)
    assert_same_bits(resumed[2].expand(), whole[2].expand())


@pytest.mark.parametrize("way", ["permanent", "second chances"])
def test_a_copy_of_all_three_continues_with_the_same_bits(way: str) -> None:
    original = pruned(True, **WAYS[way])
    train(original, 0, 6)
    copied = copy.deepcopy(original[:3])
    assert type(copied[0].first) is type(original[0].first)
    assert copied[0].first is not original[0].first
    assert copied[2].sparse_kernels.layers == original[3].layers
    for parts in (original, copied):
        train(parts, 6, 12)
    assert_same_bits(copied[0], original[0])
    copied[2].remove()
    assert type(copied[0].first) is nn.Conv2d
    assert type(original[0].first) is not nn.Conv2d


@pytest.mark.parametrize("way", ["permanent", "second chances"])
def test_accumulated_and_clipped_gradients_train_as_in_a_dense_network(way: str) -> None:
    found = []
    for sparse in (False, True):
        parts = pruned(sparse, **WAYS[way])
        for number in range(12):
            for part in range(2):
                x, y = batch(2 * number + part, images=3 + part)
                (nn.functional.cross_entropy(parts[0](x), y) / 2).backward()
            norm = nn.utils.clip_grad_norm_(parts[0].parameters(), 0.5)
            parts[1].step()
            parts[1].zero_grad()
        found.append((float(norm), parts[0].state_dict()))
        assert not parts[2].lost_zeros()
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-2)
    for name, tensor in found[0][1].items():
        torch.testing.assert_close(found[1][1][name], tensor, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("method", flipout.METHODS)
def test_every_method_has_the_option(method: str) -> None:
    assert "sparse_kernels" in flipout.METHODS[method].common


def test_a_method_without_prunings_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flipout.kernels.speed_table.SpeedTable.measure", None)
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    pruner = flipout.Dense(model, optimizer, steps=2, sparse_kernels=True)
    step(model, optimizer, 0)
    assert pruner.sparse_kernels.layers == []


def test_kept_zeros_are_used() -> None:
    parts = pruned(True)
    train(parts, 0, 12)
    parts[2].remove()
    pruner = flipout.KeepZeros(parts[0], parts[1], steps=4, sparse_kernels=True)
    kernels = on_every_density(pruner)
    train(parts, 12, 14)
    assert len(kernels.layers) == 5


@pytest.mark.parametrize("choice", ["yes", None, 2])
def test_another_choice_is_an_error(choice: Any) -> None:
    with pytest.raises(ValueError, match="sparse_kernels"):
        pruned(choice)


def test_states_fit_pruners_with_and_without_kernels() -> None:
    with_kernels, without = pruned(True), pruned(False)
    for parts in (with_kernels, without):
        train(parts, 0, 6)
    states = [parts[2].state_dict() for parts in (with_kernels, without)]
    for state in states:
        for sparse in (False, True):
            parts = pruned(sparse)
            parts[2].load_state_dict(state)
            on_every_density(parts[2])
            train(parts, 6, 12)
            assert len(parts[3].layers) == 5 * sparse


@pytest.mark.parametrize(
    "damaged",
    [
        "{",
        "[]",
        '{"densities": {}}',
        '{"densities": {"a": 2}, "keys": {}}',
        '{"densities": {"a": null}, "keys": {}}',
        '{"densities": {"a": 0.5}, "keys": {"first.weight": ["a", "b"]}}',
        '{"densities": {"a": 0.5}, "keys": {"first.weight": "aa"}}',
        7,
    ],
)
@pytest.mark.parametrize("sparse", [False, True])
def test_a_damaged_state_is_refused_and_changes_nothing(damaged: Any, sparse: bool) -> None:
    parts = pruned(sparse)
    train(parts, 0, 2)
    state = parts[2].state_dict()
    before = json.dumps(state["sparse_kernels"])
    with pytest.raises(ValueError, match="sparse_kernels"):
        parts[2].load_state_dict({**state, "step": 1, "sparse_kernels": damaged})
    assert parts[2].step == 2
    assert json.dumps(parts[2].state_dict()["sparse_kernels"]) == before


def test_without_kernels_training_is_dense_and_that_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "FILE", Path("nowhere.so"))
    for cached in (library.find_kernels, library._warn_once):
        cached.cache_clear()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", MissingKernelsWarning)
            train(pruned("auto"), 0, 2)  # type: ignore[arg-type]
        with pytest.warns(MissingKernelsWarning):
            parts = pruned(True)
        with warnings.catch_warnings():
            warnings.simplefilter("error", MissingKernelsWarning)
            pruned(True)
        train(parts, 0, 12)
        assert parts[3].layers == []
        assert type(parts[0].first) is nn.Conv2d
    finally:
        library.find_kernels.cache_clear()


def test_a_training_in_half_precision_is_dense_and_that_is_said_once() -> None:
    parts = pruned(True)
    with warnings.catch_warnings(record=True) as said, torch.autocast("cpu", dtype=torch.bfloat16):
        warnings.simplefilter("always")
        train(parts, 0, 12)
    assert [each.category for each in said].count(SparseKernelsWarning) == 1


def test_another_device_is_computed_densely_and_that_is_said_once() -> None:
    parts = pruned(True)
    train(parts, 0, 12)
    model = parts[0].eval().to("meta")
    with pytest.warns(SparseKernelsWarning, match="meta"):
        model(batch(0)[0].to("meta"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", SparseKernelsWarning)
        model(batch(0)[0].to("meta"))


def test_functional_transforms_compute_densely() -> None:
    parts = pruned(True)
    train(parts, 0, 12)
    model, (x, _) = parts[0].eval(), batch(0)
    values = dict(model.named_parameters())

    def loss(values: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(model, values, (x,)).square().sum()  # type: ignore[no-any-return]

    found = torch.func.grad(loss)(values)
    plain = copy.deepcopy(model)
    plain(x).square().sum().backward()
    torch.testing.assert_close(found["second.weight"], plain.second.weight.grad, rtol=1e-3, atol=1e-4)


def test_exports_of_a_model_in_training_are_those_of_an_ordinary_one() -> None:
    parts = pruned(True)
    train(parts, 0, 12)
    model, (x, _) = parts[0].eval(), batch(0)
    for made in (flipout.export.compact(model, x), flipout.export.accelerate(model, x, repetitions=1)):
        torch.testing.assert_close(made(x), model(x), rtol=1e-3, atol=1e-4)
    assert parts[2].summary(x).effective is not None


def test_a_number_is_measured_once_on_a_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLIPOUT_CACHE", str(tmp_path))
    for measured, expected in ((0.1, 0.1), (0.2, 0.1)):
        monkeypatch.setattr(machine_memory, "_known", {})
        assert remembered("a layer", [measured].pop) == expected
    (file,) = (tmp_path / "speed").iterdir()
    file.write_text("nonsense")
    monkeypatch.setattr(machine_memory, "_known", {})
    assert remembered("a layer", lambda: 0.3) == 0.3
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    monkeypatch.setenv("FLIPOUT_CACHE", str(blocked))
    assert [remembered("a layer", [each].pop) for each in (0.4, 0.5)] == [0.4, 0.4]
