"""States of shrunk networks that are damaged, or that claim what is not so: refused before anything is changed."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from .perceptrons import EXAMPLE, STEPS, Parts, pruned, steps

Shrunk = dict[str, Any]


def shrunk_state() -> tuple[Parts, list[Any]]:
    """A shrunk training in the middle of its prunings, and its states."""
    parts = _, _, pruner = pruned()
    steps(parts, 0, STEPS // 2)
    pruner.shrink(EXAMPLE)
    with pruner.expanded():
        return parts, copy.deepcopy([part.state_dict() for part in parts])


def rows(shrunk: Shrunk, name: str = "0.weight") -> list[int]:
    index: list[int] = shrunk["indices"][name][0]
    return index


def set_example(example: Any) -> Callable[[Shrunk], object]:
    return lambda shrunk: shrunk.update(example=example)


def set_rows(change: Callable[[list[int]], Any]) -> Callable[[Shrunk], object]:
    """Change the hidden channels that are left of the first layer, everywhere."""

    def act(shrunk: Shrunk) -> None:
        changed = change(rows(shrunk))
        shrunk["indices"]["0.weight"][0] = shrunk["indices"]["0.bias"][0] = changed
        shrunk["indices"]["2.weight"][1] = changed

    return act


def without_one_bias(shrunk: Shrunk) -> None:
    shrunk["indices"]["0.bias"][0] = [number for number in range(32) if number not in rows(shrunk)][: len(rows(shrunk))]


DAMAGES: dict[str, Callable[[Shrunk], object]] = {
    "too large an example": set_example([["", [10**13], "float32"]]),
    "a large claim": set_example([["", [3 * 10**8], "float64"]]),
    "many inputs": set_example([["", [2**20, 8], "float32"]] * 64),
    "a negative size": set_example([["", [-4, 8], "float32"]]),
    "a size of zero": set_example([["", [0, 8], "float32"]]),
    "a size that is no number": set_example([["", ["4", 8], "float32"]]),
    "an unknown type": set_example([["", [4, 8], "float33"]]),
    "a type that is none": set_example([["", [4, 8], "nn"]]),
    "a name that is none": set_example([[0, [4, 8], "float32"]]),
    "no example": set_example([]),
    "nested indices": set_rows(lambda index: [index]),
    "repeated indices": set_rows(lambda index: [index[0], *index]),
    "indices in another order": set_rows(lambda index: index[::-1]),
    "no indices": set_rows(lambda index: []),
    "a negative index": set_rows(lambda index: [-1, *index]),
    "an index out of range": set_rows(lambda index: [*index, 32]),
    "a huge index": set_rows(lambda index: [*index, 10**30]),
    "an index that is true": set_rows(lambda index: [*index, True]),
    "live channels are removed": set_rows(lambda index: index[1:]),
    "tensors that do not fit together": without_one_bias,
    "too few dimensions": lambda shrunk: shrunk["indices"]["0.weight"].pop(),
    "an unknown tensor": lambda shrunk: shrunk["indices"].update({"9.weight": [[0], None]}),
    "a batch of none": lambda shrunk: shrunk.update(batch=0),
    "a share that is no number": lambda shrunk: shrunk["shrinks"][0].__setitem__(2, float("nan")),
    "a negative step": lambda shrunk: shrunk["shrinks"][0].__setitem__(0, -1),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_state_changes_nothing(damage: str) -> None:
    _, states = shrunk_state()
    shrunk = json.loads(states[2]["shrunk"])
    DAMAGES[damage](shrunk)
    assert json.dumps(shrunk) != states[2]["shrunk"]
    others = model, _, other = pruned()
    steps(others, 0, 3)
    before = copy.deepcopy([part.state_dict() for part in others])
    with pytest.raises(ValueError, match="`shrunk` of the state"):
        other.load_state_dict({**states[2], "shrunk": json.dumps(shrunk)})
    assert not other.shrunk
    after = other.state_dict()
    assert (after["step"], after["events"], after["shrunk"]) == (3, before[2]["events"], before[2]["shrunk"])
    assert all(torch.equal(mask, before[2]["masks"][name]) for name, mask in after["masks"].items())
    assert all(torch.equal(tensor, before[0][name]) for name, tensor in model.state_dict().items())


def test_masks_that_disagree_with_the_events_are_refused() -> None:
    _, states = shrunk_state()
    masks = {name: mask.clone() for name, mask in states[2]["masks"].items()}
    pruned_place = (~masks["2.weight"]).nonzero()[0]
    masks["2.weight"][tuple(pruned_place)] = True
    other = pruned()[2]
    with pytest.raises(ValueError, match=r"2\.weight"):
        other.load_state_dict({**states[2], "masks": masks})
    assert other.step == 0
    assert other.nonzero == other.prunable


def test_a_state_of_fewer_masks_than_channels_is_loaded() -> None:
    """Weights that were pruned after the last shrink leave channels that nothing reads; these are still there."""
    parts, _ = shrunk_state()
    steps(parts, STEPS // 2, STEPS)
    with parts[2].expanded():
        states = copy.deepcopy([part.state_dict() for part in parts])
    others: Any = pruned()
    for part, state in zip(others, states, strict=True):
        part.load_state_dict(state)
    assert others[2].computed == parts[2].computed
