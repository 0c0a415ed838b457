"""Random trainings, attacked: loops, clipping, closures, interruptions, checkpoints, spoilt states.

A few with fresh seeds run in every test session, many in `make attack`.
"""

from __future__ import annotations

import copy
import io
import json
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.attacks import fresh_seeds, seeds
from tests.core.random_trainings import RandomTraining
from tests.helpers import same
from tests.runtime.test_interruptions import ctrl_c, interrupted_at, restore_torch  # noqa: F401  # the first is a fixture

pytestmark = [
    pytest.mark.usefixtures("ctrl_c"),
    # Python drops a Ctrl-C that comes while it closes a generator, and says so.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
Attack = Callable[[int], None]


def random_loop(seed: int) -> None:
    """Exact counts, zeros, and norms of what is kept, whatever the loop does."""
    RandomTraining(seed).finish()


def interrupted(seed: int) -> None:
    """Ctrl-C at random moments of random steps: the model is sparse before anybody sees it, and training continues."""
    training, chance = RandomTraining(seed), random.Random(f"interrupted {seed}")
    training.step(0)  # an optimizer that is interrupted while it makes its state is broken without a pruner too
    for number in range(1, training.steps - 8):
        try:
            with interrupted_at(chance.randrange(1, 4000)):
                training.step(number)
        except KeyboardInterrupt:
            restore_torch()
            training.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)  # it does not survive this
        training.pruner.check()
        training.optimizer.zero_grad()
    for number in range(2 * training.steps):
        training.step(number % training.steps)
        training.check()
    assert training.pruner.finished


def resumed(seed: int) -> None:
    """A checkpoint at a random step, loaded into new objects: the same bits at the end."""
    training, chance = RandomTraining(seed), random.Random(f"resumed {seed}")
    at = chance.randint(1, training.steps - 1)
    for number in range(at):
        training.step(number)
    file = io.BytesIO()
    torch.save(training.state(), file)
    training.finish(at)
    again = RandomTraining(seed)
    for number in range(chance.choice([0, 0, 3])):  # what was trained before does not matter
        again.step(number)
    file.seek(0)
    again.load(torch.load(file, weights_only=True))
    again.finish(at)
    assert again.pruner.events == training.pruner.events
    for name, tensor in training.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name]), name
    assert same(again.pruner.state_dict(), training.pruner.state_dict())


def spoilt_state(seed: int) -> None:
    """A state with random damage is refused and changes nothing, or the training keeps its promises with it.

    What cannot be seen in a state, such as a NaN in a statistic, is found by the next pruning.
    """
    training, chance = RandomTraining(seed, plain=True), random.Random(f"spoilt {seed}")
    at = chance.randint(1, training.steps - 2)
    for number in range(at):
        training.step(number)
    before, state = copy.deepcopy(training.state()), training.pruner.state_dict()
    for _ in range(8):
        spoilt = spoil(copy.deepcopy(state), chance)
        try:
            training.pruner.load_state_dict(spoilt)
        except ValueError:
            assert same(training.pruner.state_dict(), state)
            training.check()
            continue
        training.pruner.check()
        with suppress(FloatingPointError):  # a pruning refuses scores of NaN
            training.step(at)
        training.pruner.check()
        training.load(before)
        training.optimizer.zero_grad()
        assert same(training.pruner.state_dict(), state)
    training.finish(at)


ODD: list[Any] = [None, True, -1, 10**30, 1.5, float("nan"), "", "[]", "{}", [], {}, torch.zeros(()), b"x", (1, 2)]


def spoil(state: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """Damage one place of a state."""
    place, key = _random_place(state, chance)
    value = place[key]
    if isinstance(value, Tensor) and value.numel() and chance.random() < 0.8:
        place[key] = chance.choice(DAMAGES)(value.clone(), chance)
    elif isinstance(value, str) and key in ("events", "shrunk", "settings") and chance.random() < 0.8:
        place[key] = _spoil_text(value, chance)
    elif chance.random() < 0.3:
        del place[key]
    else:
        place[key] = chance.choice(ODD)
    return state


def _random_place(place: dict[str, Any], chance: random.Random) -> tuple[dict[str, Any], str]:
    key = chance.choice(sorted(place))
    while isinstance(place[key], dict) and place[key] and chance.random() < 0.9:
        place = place[key]
        key = chance.choice(sorted(place))
    return place, key


def _one_element(tensor: Tensor, chance: random.Random) -> Tensor:
    flat = tensor.view(-1)
    at = chance.randrange(flat.numel())
    flat[at] = not flat[at] if tensor.dtype == torch.bool else chance.choice([0, 1, 3, 100])
    return tensor


def _not_finite(tensor: Tensor, chance: random.Random) -> Tensor:
    if tensor.is_floating_point():
        tensor.view(-1)[chance.randrange(tensor.numel())] = chance.choice([float("nan"), float("inf")])
    return tensor


DAMAGES: list[Callable[[Tensor, random.Random], Tensor]] = [
    _one_element,
    _not_finite,
    lambda tensor, _: tensor[None],
    lambda tensor, _: tensor.view(-1)[1:],
    lambda tensor, _: tensor.to(torch.float64 if tensor.dtype != torch.float64 else torch.int16),
    lambda tensor, _: tensor.to("meta"),
    lambda tensor, _: tensor.flip(0) if tensor.ndim else tensor,
    lambda tensor, _: torch.zeros_like(tensor),
    lambda tensor, _: torch.ones_like(tensor),
    lambda tensor, _: tensor[:1].expand_as(tensor) if tensor.ndim else tensor,
]


def _spoil_text(text: str, chance: random.Random) -> str:
    """Damage JSON: in a letter, or in a number."""
    at = chance.randrange(max(1, len(text)))
    if chance.random() < 0.5:
        return text[:at] + chance.choice(["", "9", "-", "]", '"', "null", "[" * 2000]) + text[at + 1 :]
    try:
        read = json.loads(text)
    except ValueError:
        return text[:at]
    places: list[tuple[Any, Any]] = []
    _numbers(read, places)
    if places:
        holder, key = chance.choice(places)
        holder[key] = chance.choice([-1, 0, 10**12, 10**30, 1.5, None, "x", [], float("nan")])
    return json.dumps(read)


def _numbers(read: Any, places: list[tuple[Any, Any]]) -> None:
    items = read.items() if isinstance(read, dict) else enumerate(read) if isinstance(read, list) else ()
    for key, value in items:
        if isinstance(value, int | float):
            places.append((read, key))
        _numbers(value, places)


ATTACKS: dict[str, Attack] = {
    "random-loop": random_loop,
    "interrupted": interrupted,
    "resumed": resumed,
    "spoilt-state": spoilt_state,
}


@pytest.mark.parametrize("seed", fresh_seeds(2))
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_few(attack: str, seed: int) -> None:
    ATTACKS[attack](seed)


@pytest.mark.slow
@pytest.mark.attack
@pytest.mark.parametrize("seed", seeds(60))
@pytest.mark.parametrize("attack", ATTACKS)
def test_many(attack: str, seed: int) -> None:
    ATTACKS[attack](seed)
