"""Seeds of the random attacks: fixed in `make test-slow`, fresh in `make attack`, which prints them."""

from __future__ import annotations

import os

VARIABLE = "FLIPOUT_ATTACK_SEED"


def seeds(count: int) -> list[int]:
    """So many seeds, from 0 on or from the one in the environment on. They are the ids of the tests, so a failure
    names its seed; make an example of it."""
    first = int(os.environ.get(VARIABLE, "0"))
    return list(range(first, first + count))
