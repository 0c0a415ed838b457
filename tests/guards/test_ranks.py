"""Ranks that would prune different weights: found at the first pruning, on every rank, with the cause."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import flipout
from flipout.guards.ranks import RankReport, disagreement
from tests.helpers import mlp, sgd

SCENARIOS = {
    "alike": None,
    "dead_first": None,
    "larger_units": None,
    "latents": None,
    "other_seeds": r"Use the same settings on every rank, the seed included:\s*seed: 0 on rank 0, 1 on rank 1",
    "attached_before_ddp": r"Rank 0 and rank 1 start from different weights \(0\.weight, 2\.weight, 4\.weight\): wrap",
    "without_ddp": r"would prune different weights \(.*\); their weights differ too .*DistributedDataParallel",
    "own_data": r"would prune different weights .*weights are equal, so the criterion depends on the data of a rank",
    "other_states": r"The masks of rank 0 and rank 1 differ \(.*\): load the same state on every rank",
    "keep_zeros_before_ddp": None,
    "keep_zeros_without_ddp": r"Rank 0 and rank 1 start from different weights \(0\.weight\)",
    "switched_off": None,
    "different_networks": r"They hold different weights, as in pipeline parallelism",
    "resumed_within_an_epoch": None,
}


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """What each of two ranks reports, for all scenarios in one pair of processes."""
    folder = tmp_path_factory.mktemp("ranks")
    script = Path(__file__).parent / "rank_scenarios.py"
    commands = [[sys.executable, "-W", "ignore", str(script), str(rank), str(folder)] for rank in range(2)]
    ranks = [subprocess.Popen(command) for command in commands]
    assert [rank.wait(timeout=300) for rank in ranks] == [0, 0]
    return [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_two_ranks(messages: list[dict[str, str]], scenario: str) -> None:
    expected = SCENARIOS[scenario]
    assert messages[0].keys() == SCENARIOS.keys()
    for message in (rank[scenario] for rank in messages):
        if expected is None:
            assert not message
            continue
        assert message.startswith("RuntimeError: the ranks of this training differ, and nothing was pruned. ")
        assert re.search(expected, message, re.DOTALL), message
        assert message.endswith("set flipout.Pruner.check_ranks = False")


def report(**changes: object) -> RankReport:
    settings = {"seed": 0, "weights": {"a": [2], "b": [2]}}
    return RankReport(3, settings, [1, 2], [3, 4], [5, 6])._replace(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"step": 4}, "Rank 0 is at step 3 and rank 2 at step 4"),
        ({"settings": {"seed": 1, "weights": {"a": [2], "b": [2]}}}, "seed: 0 on rank 0, 1 on rank 2"),
        ({"settings": {"seed": 1, "weights": {"a": [2]}}}, "They hold different weights, as in pipeline parallelism"),
        ({"masks": [1, 9]}, r"The masks of rank 0 and rank 2 differ \(b\)"),
        ({"weights": [9, 9]}, None),  # no harm, as long as the same weights are pruned
        ({"weights": [9, 9], "choice": [5, 9]}, r"different weights \(b\); their weights differ too \(a, b\)"),
        ({"choice": [9, 6]}, r"different weights \(a\); their weights are equal"),
    ],
)
def test_the_cause(changes: dict[str, object], message: str | None) -> None:
    found = disagreement([report(), report(), report(**changes)])
    assert found is None if message is None else re.search(message, found or "")


def test_different_weights_before_the_first_step() -> None:
    found = disagreement([report(step=0), report(step=0, weights=[3, 9])])
    assert found is not None
    assert "start from different weights (b)" in found


def test_many_layers_and_growth() -> None:
    weights = {str(number): [1] for number in range(9)}
    zeros = RankReport(1, {"weights": weights}, [0] * 9, [0] * 9, [0] * 18)
    found = disagreement([zeros, zeros._replace(choice=[0] * 9 + [1] * 9)])
    assert found is not None
    assert "(0, 1, 2, 3, 4, ...)" in found


def test_one_process_is_not_compared() -> None:
    assert flipout.Pruner.check_ranks
    model = mlp()
    schedule = flipout.OneShot(0.5, 10, at=0)
    flipout.Pruner(model, sgd(model), criterion=flipout.criteria.magnitude, schedule=schedule)
