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
    (lambda _: [], "this is not the state of a pruner, but a list"),
    (lambda _: None, "this is not the state of a pruner, but a NoneType"),
    (drop("extra"), "it has no extra"),
    (drop("events"), "it has no events"),
    (put("step", "13"), "`step` of the state is a str; it must be an integer"),
    (put("step", True), "`step` of the state is a bool; it must be an integer"),
    (put("step", None), "`step` of the state is a NoneType"),
    (put("step", -1), "`step` of the state is -1; it must be at least 0"),
    (put("compiled", "yes"), "`compiled` of the state is a str; it must be a boolean"),
    (put("settings", []), "`settings` of the state is a list; it must be a string"),
    (put("masks", []), "`masks` of the state is a list; it must be a dict"),
    (put("statistics", None), "`statistics` of the state is a NoneType; it must be a dict"),
    (put("extra", 3), "`extra` of the state is a int; it must be a dict"),
    (drop("masks", "4.weight"), r"the state has no tensor for masks of 4\.weight"),
    (put("masks", "5.weight", torch.ones(3)), r"masks of 5\.weight, which this pruner does not have"),
    (
        put("masks", "4.weight", lambda mask: mask[:1]),
        r"masks of 4\.weight has shape \(1, 8\) in the state and \(4, 8\)",
    ),
    (put("masks", "4.weight", lambda mask: mask.t()), r"masks of 4\.weight has shape \(8, 4\)"),
    (put("masks", "4.weight", lambda mask: mask[0, 0]), r"masks of 4\.weight has shape \(\)"),
    (put("masks", "4.weight", lambda mask: mask.float()), r"masks of 4\.weight is of torch\.float32.*torch\.bool here"),
    (put("masks", "4.weight", lambda mask: mask.tolist()), r"masks of 4\.weight is a list.*must be a tensor"),
    (put("masks", "4.weight", lambda mask: mask.to("meta")), r"masks of 4\.weight has no values"),
    (put("masks", "4.weight", lambda mask: mask.to_sparse()), r"masks of 4\.weight has no values.*sparse"),
    (drop("statistics", "flips"), "the state has no tensor for statistics of flips"),
    (put("statistics", "hessian", {}), "statistics of hessian, which this pruner does not have"),
    (put("statistics", "flips", []), "statistics of flips is a list in the state; it must be a dict"),
    (drop("statistics", "flips", "4.weight"), r"no tensor for statistics of flips of 4\.weight"),
    (put("statistics", "flips", "4.weight", torch.ones(4, 8)), r"statistics of flips of 4\.weight is a Tensor"),
    (drop("statistics", "flips", "4.weight", "low"), r"no tensor for statistics of flips of 4\.weight of low"),
    (
        put("statistics", "flips", "4.weight", "low", lambda low: low[:2]),
        r"statistics of flips of 4\.weight of low has shape \(2, 8\) in the state and \(4, 8\) here",
    ),
    (put("statistics", "flips", "4.weight", "low", lambda low: low.int()), r"of low is of torch\.int32 in the state"),
    (put("statistics", "flips", "4.weight", "middle", torch.ones(1)), "of middle, which this pruner does not have"),
    (put("extra", "signs", {}), "extra of signs, which this pruner does not have"),
    (put("events", []), "`events` of the state is a list; it must be a string"),
    (put("events", "[{"), "`events` of the state is not a JSON list"),
    (put("events", "3"), "`events` of the state is not a JSON list"),
    (put("events", "[3]"), "`events` of the state is not a JSON list"),
    (put("events", '[{"step": 3}]'), "`events` of the state is not a JSON list"),
    (event(step="3"), "has an event that is not one"),
    (event(nonzero=None), "has an event that is not one"),
    (event(kept=[1, 2]), "has an event that is not one"),
    (event(kept={"0.weight": 1.5}), "has an event that is not one"),
    (event(sparsity="0.9"), "has an event that is not one"),
    (event(luck=7), "`events` of the state is not a JSON list"),
    (
        put("events", lambda text: json.dumps(json.loads(text) * 50)),
        r"the state has \d+ pruning events, but 26 are planned",
    ),
]

OTHERS: list[tuple[str, Break, str]] = [
    ("deep-r", drop("form", "4.weight"), r"form of 4\.weight"),
    ("deep-r", drop("form", "4.weight", "signs"), r"form of 4\.weight of signs"),
    ("deep-r", put("form", "4.weight", "signs", lambda s: s[0]), r"form of 4\.weight of signs.*\(8,\)"),
    ("deep-r", put("form", "4.weight", "signs", lambda s: s.float()), r"form of 4\.weight of signs.*float32"),
    ("deep-r", put("form", "4.weight", "signs", [1, 2]), r"form of 4\.weight of signs"),
    ("lottery", put("extra", "early", {}), r"no tensor for extra of early of 0\.weight, 0\.bias"),
    ("lottery", put("extra", "early", "2.bias", lambda b: b[:1]), r"extra of early of 2\.bias has shape \(1,\)"),
    ("lottery", put("extra", {}), "no tensor for extra of early"),
    ("magnitude-uncertainty", drop("statistics", "std", "0.weight", "count"), r"std of 0\.weight of count"),
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
