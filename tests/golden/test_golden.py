"""Short trainings have the recorded bits, and a resumed training has those of one without a break."""

from __future__ import annotations

import pytest

from .configurations import CONFIGURATIONS
from .record import environment, recorded, trained
from .training import difference


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_resumed_training_has_the_bits_of_one_without_a_break(name: str) -> None:
    looks, resumed = trained(name)
    if text := difference(looks, resumed):
        pytest.fail(f"{name}, resumed after {CONFIGURATIONS[name].steps // 2} steps: {text}", pytrace=False)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_training_has_the_recorded_bits(name: str) -> None:
    expected = recorded(name)
    if expected is None:
        pytest.skip(f"no hashes of {name} are recorded for {environment()}; see tests/golden/record.py")
    if text := difference(expected, trained(name).looks):
        pytest.fail(f"{name}: {text}", pytrace=False)
