"""A state that does not fit is refused by name, and nothing is changed by it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import flipout
from tests.helpers import fresh, make, mlp, run, same, sgd, train

Break = Callable[[dict[str, Any]], Any]


def put(*path: Any) -> Break:
    """Replace what the last but one element of a path leads to by the last one."""
    *keys, last, value = path

    def change(state: dict[str, Any]) -> dict[str, Any]:
        place = state
        for key in keys:
            place = place[key]
        place[last] = value(place.get(last)) if callable(value) else value
        return state

    return change


def drop(*path: str) -> Break:
    *keys, last = path

    def change(state: dict[str, Any]) -> dict[str, Any]:
        place = state
        for key in keys:
            place = place[key]
        del place[last]
        return state

    return change


def event(**changes: Any) -> Break:
    """The list of events with one that is changed."""

    def change(state: dict[str, Any]) -> dict[str, Any]:
        events = json.loads(state["events"])
        return {**state, "events": json.dumps([{**events[0], **changes}, *events[1:]])}

    return change


FLIPOUT: list[tuple[Break, str]] = [
    (lambda _: [], "a list"),
    (lambda _: None, "NoneType"),
    (drop("extra"), "extra"),
    (drop("events"), "events"),
    (put("step", "13"), "`step` .*str"),
    (put("step", True), "`step` .*bool"),
    (put("step", None), "`step` .*NoneType"),
    (put("step", -1), "`step` .*-1"),
    (put("compiled", "yes"), "`compiled` .*str"),
    (put("settings", []), "`settings` .*list"),
    (put("masks", []), "`masks` .*list"),
    (put("statistics", None), "`statistics` .*NoneType"),
    (put("extra", 3), "`extra` .*int"),
    (drop("masks", "4.weight"), r"masks.*4\.weight"),
    (put("masks", "5.weight", torch.ones(3)), r"masks.*5\.weight"),
    (
        put("masks", "4.weight", lambda mask: mask[:1]),
        r"masks.*4\.weight.*\(1, 8\).*\(4, 8\)",
    ),
    (put("masks", "4.weight", lambda mask: mask.t()), r"masks.*4\.weight.*\(8, 4\)"),
    (put("masks", "4.weight", lambda mask: mask[0, 0]), r"masks.*4\.weight.*\(\)"),
    (put("masks", "4.weight", lambda mask: mask.float()), r"masks.*4\.weight.*float32.*bool"),
    (put("masks", "4.weight", lambda mask: mask.tolist()), r"masks.*4\.weight.*list"),
    (put("masks", "4.weight", lambda mask: mask.to("meta")), r"masks.*4\.weight"),
    (put("masks", "4.weight", lambda mask: mask.to_sparse()), r"masks.*4\.weight"),
    (drop("statistics", "flips"), r"statistics.*flips"),
    (put("statistics", "hessian", {}), r"statistics.*hessian"),
    (put("statistics", "flips", []), r"statistics.*flips.*list"),
    (drop("statistics", "flips", "4.weight"), r"statistics.*flips.*4\.weight"),
    (put("statistics", "flips", "4.weight", torch.ones(4, 8)), r"statistics.*flips.*4\.weight.*Tensor"),
    (drop("statistics", "flips", "4.weight", "low"), r"statistics.*flips.*4\.weight.*low"),
    (
        put("statistics", "flips", "4.weight", "low", lambda low: low[:2]),
        r"statistics.*flips.*4\.weight.*low.*\(2, 8\).*\(4, 8\)",
    ),
    (put("statistics", "flips", "4.weight", "low", lambda low: low.int()), r"low.* is of torch\.int32"),
    (put("statistics", "flips", "4.weight", "middle", torch.ones(1)), "middle"),
    (put("extra", "signs", {}), r"extra.*signs"),
    (put("events", []), "`events` .*list"),
    (put("events", "[{"), "`events` .*JSON"),
    (put("events", "3"), "`events` .*JSON"),
    (put("events", "[3]"), "`events` .*JSON"),
    (put("events", '[{"step": 3}]'), "`events` .*JSON"),
    (event(step="3"), "`events`"),
    (event(nonzero=None), "`events`"),
    (event(kept=[1, 2]), "`events`"),
    (event(kept={"0.weight": 1.5}), "`events`"),
    (event(sparsity="0.9"), "`events`"),
    (event(luck=7), "`events` .*JSON"),
    (event(nonzero=10**12), "`events`"),
    (event(step=10**6), "`events`"),
    (event(step=-1), "`events`"),
    (event(kept={"0.weight": 352}), "`events`"),
    (put("step", 0), "`events`"),
    (put("events", "[]"), r"mask of 0\.weight"),
    (put("events", "[" * 100_000), "`events`"),
    (put("settings", "[" * 100_000), "`settings`"),
    (
        put("events", lambda text: json.dumps(json.loads(text) * 50)),
        r"\d+ .*events.*26",
    ),
]

OTHERS: list[tuple[str, Break, str]] = [
    ("deep-r", drop("form", "4.weight"), r"form.*4\.weight"),
    ("deep-r", drop("form", "4.weight", "signs"), r"form.*4\.weight.*signs"),
    ("deep-r", put("form", "4.weight", "signs", lambda s: s[0]), r"form.*4\.weight.*signs.*\(8,\)"),
    ("deep-r", put("form", "4.weight", "signs", lambda s: s.float()), r"form.*4\.weight.*signs.*float32"),
    ("deep-r", put("form", "4.weight", "signs", [1, 2]), r"form.*4\.weight.*signs"),
    ("flipout", put("form", "4.weight", "threshold", torch.tensor(torch.inf)), r"threshold.* of 4\.weight"),
    ("flipout", put("form", "4.weight", "values", lambda v: v * torch.nan), r"values.* of 4\.weight"),
    ("lottery", put("extra", "early", {}), r"extra.*early.*0\.weight, 0\.bias"),
    ("lottery", put("extra", "early", "2.bias", lambda b: b[:1]), r"extra.*early.*2\.bias.*\(1,\)"),
    ("lottery", put("extra", {}), r"extra.*early"),
    ("lottery", put("masks", "0.weight", torch.zeros_like), "next pruning"),
    ("dynamic-sparse-training", put("masks", "0.weight", torch.zeros_like), r"mask of 0\.weight"),
    ("magnitude-uncertainty", drop("statistics", "std", "0.weight", "count"), r"std.*0\.weight.*count"),
]


def assert_refused(method: str, spoil: Break, message: str) -> None:
    model, optimizer, pruner = fresh(method)
    run(model, optimizer, pruner, 13)
    state = pruner.state_dict()

    other = mlp(seed=5)
    other_optimizer = sgd(other)
    loading = make(method, other, other_optimizer)
    run(other, other_optimizer, loading, 7)
    weights = [parameter.detach().clone() for parameter in other.parameters()]
    before = loading.state_dict()
    with pytest.raises(ValueError, match=message):
        loading.load_state_dict(spoil(copy.deepcopy(state)))
    assert same(loading.state_dict(), before)
    assert loading.step == 7
    assert all(torch.equal(a, b) for a, b in zip(weights, other.parameters(), strict=True))
    run(other, other_optimizer, loading, 9, skip=7)
    loading.load_state_dict(state)
    assert same(loading.state_dict(), state)


@pytest.mark.parametrize(("spoil", "message"), FLIPOUT)
def test_broken_states_of_flipout(spoil: Break, message: str) -> None:
    assert_refused("flipout", spoil, message)


@pytest.mark.parametrize(("method", "spoil", "message"), OTHERS)
def test_broken_states_of_other_methods(method: str, spoil: Break, message: str) -> None:
    assert_refused(method, spoil, message)


def test_a_state_without_events_has_no_zeros_in_its_masks() -> None:
    _, _, pruner = fresh("magnitude")
    state = pruner.state_dict()
    with pytest.raises(ValueError, match=r"mask of 2\.weight"):
        pruner.load_state_dict(put("masks", "2.weight", torch.zeros_like)(state))
    assert pruner.nonzero == 352


class Picky(flipout.GlobalMagnitude):
    """A method of one's own that refuses what it loads."""

    def extra_state(self) -> dict[str, dict[str, Tensor]]:
        return {"mine": {"number": torch.zeros(())}}

    def load_extra_state(self, extra: Any) -> None:
        raise KeyError("mine")


def test_a_method_that_refuses_its_state_changes_nothing() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = Picky(model, optimizer, sparsity=0.9, steps=20)
    before = pruner.state_dict()
    train(model, optimizer, 10)
    state = pruner.state_dict()
    with pytest.raises(KeyError, match="mine"):
        pruner.load_state_dict(before)
    assert same(pruner.state_dict(), state)
    assert pruner.step == 10
