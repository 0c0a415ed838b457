"""kill -9 at random moments, repeatedly: the final bytes are those of an uninterrupted run."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.attacks import seeds
from tests.lab.helpers import untimed

pytestmark = [pytest.mark.slow, pytest.mark.attack]

METHODS = ["flipout", "magnitude", "snip", "deep-r", "lottery", "hoyer-square"]
SHRINKING = "magnitude --width 4"  # large enough to be shrunk while it trains
KILLS = 4
(SEED,) = seeds(1)


def command(method: str, out: Path) -> list[str]:
    sparsity = 0.99 if method == SHRINKING else 0.9
    options = f"--method {method} --epochs 15 --sparsity {sparsity} --batch-size 16 --learning-rate 0.03 --threads 1"
    return [sys.executable, "-m", "flipout_lab", "train", *options.split(), "--out", str(out)]


@pytest.mark.parametrize("method", [*METHODS, SHRINKING])
def test_killed_at_random_moments(method: str, tmp_path: Path) -> None:
    """Four kills for each of six methods, and of a run that shrinks its network."""
    subprocess.run([*command(method, tmp_path / "whole"), "--quiet"], check=True)
    chance, kills = random.Random(f"{SEED} {method}"), 0
    while kills < KILLS:
        running = subprocess.Popen(command(method, tmp_path / "parts"), stdout=subprocess.PIPE, text=True)
        assert running.stdout is not None
        # Wait until it trains, and then for a random moment of the next two epochs.
        for line in running.stdout:
            if line.startswith("epoch") or "step" in line:
                break
        deadline = time.monotonic() + chance.uniform(0, 0.15)
        while time.monotonic() < deadline and running.poll() is None:
            pass
        running.kill()
        running.stdout.close()
        kills += running.wait() == -9
        if (tmp_path / "parts" / "result.json").exists():
            assert kills, "it was never killed"
            break
    subprocess.run([*command(method, tmp_path / "parts"), "--quiet"], check=True)
    whole, parts = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts"))
    assert whole == parts, f"FLIPOUT_ATTACK_SEED={SEED}"
    one, other = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("whole", "parts"))
    assert untimed(one) == untimed(other)
    lines = [json.loads(line) for line in (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == list(range(1, one["epochs"] + 1))
    assert kills == KILLS
    assert bool(one["shrinks"]) == (method == SHRINKING)
