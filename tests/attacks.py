"""Seeds of the random attacks, and `make attack`, which repeats the attacks with fresh seeds.

A seed is the id of its test, so a failure names it: `FLIPOUT_ATTACK_SEED=17 pytest -m attack -k 17` repeats it. Make an
example of it.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time

VARIABLE, MINUTES = "FLIPOUT_ATTACK_SEED", "FLIPOUT_ATTACK_MINUTES"
FRESH = "FLIPOUT_FRESH_SEED"
"""Set at the start of every test session, before its processes are started, so that they agree."""


def seeds(count: int) -> list[int]:
    """So many seeds for long attacks, from 0 on (`make test-slow`) or from the one in the environment on."""
    first = int(os.environ.get(VARIABLE, "0"))
    return list(range(first, first + count))


def fresh_seeds(count: int) -> list[int]:
    """So many seeds for small attacks, other ones in every test session unless the environment has one."""
    first = int(os.environ[FRESH])
    return list(range(first, first + count))


def draw_fresh_seed() -> int:
    """Choose the first of the fresh seeds of this session, and return it."""
    return int(os.environ.setdefault(FRESH, os.environ.get(VARIABLE) or str(random.SystemRandom().randrange(10**6))))


def main() -> int:
    """Repeat all attacks, each time with another seed, until the time is over or one of them finds something."""
    minutes, started = float(os.environ.get(MINUTES, "10")), time.monotonic()
    seed, rounds = draw_fresh_seed(), 0
    while not rounds or time.monotonic() - started < 60 * minutes:
        print(f"{VARIABLE}={seed}", flush=True)
        environment = {**os.environ, VARIABLE: str(seed), FRESH: str(seed)}
        done = subprocess.run([sys.executable, "-m", "pytest", "-m", "attack", *sys.argv[1:]], env=environment)
        passed = (time.monotonic() - started) / 60
        if done.returncode:
            print(f"found something with {VARIABLE}={seed}, after {rounds} rounds and {passed:.0f} minutes")
            return done.returncode
        seed, rounds = random.SystemRandom().randrange(10**6), rounds + 1
        print(f"{rounds} rounds in {passed:.0f} minutes, nothing found", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
