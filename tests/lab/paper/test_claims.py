"""The claims of the paper checked against results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flipout_lab import make_settings
from flipout_lab.paper.paper_claims import CLAIMS, Claim, Finding, Verdict, claims_table, overall
from flipout_lab.paper.results_page import render_results_page
from flipout_lab.reports import Record, Records


def run(accuracy: float, part: str, dead: tuple[str, ...] = (), **settings: Any) -> Record:
    made = make_settings("paper", data="digits", model="mlp", **settings)
    key = "validation_accuracy" if made.validate_ else "test_accuracy"
    result = {
        "test_accuracy": None,
        "validation_accuracy": None,
        "dead_layers": dead,
        "seconds": 1.0,
        "sparsity": made.sparsity,
    }
    return Record(made.folder_name(), made, (part,), {**result, key: accuracy / 100})


def claim(start: str) -> Claim:
    (found,) = (each for each in CLAIMS if each.text.startswith(start))
    return found


def verdicts(start: str, *runs: Record) -> list[Verdict]:
    return [finding.verdict for finding in claim(start).findings(Records("test", runs))]


def results(method: str, accuracies: list[float], sparsity: float = 0.999, **more: Any) -> list[Record]:
    return [run(a, "results", method=method, sparsity=sparsity, seed=i, **more) for i, a in enumerate(accuracies)]


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        ([80, 81, 82], [70, 71, 72], Verdict.HOLDS),
        ([70, 71, 72], [80, 81, 82], Verdict.FAILS),
        ([80, 81, 82], [79, 81, 82], Verdict.LEVEL),
        ([80], [70], Verdict.OPEN),
    ],
)
def test_a_win_at_the_extreme(ours: list[float], theirs: list[float], verdict: Verdict) -> None:
    found = verdicts("FlipOut is the best", *results("flipout-paper", ours), *results("magnitude", theirs))
    assert found == [verdict]


def test_the_best_method_beats_every_other() -> None:
    ours = results("flipout-paper", [90, 90.2, 89.9])
    beaten = results("magnitude", [88, 88.1, 88])
    assert verdicts("FlipOut is the best", *ours, *beaten) == [Verdict.HOLDS]
    assert verdicts("FlipOut is the best", *ours, *beaten, *results("snip", [70, 91, 91])) == [Verdict.LEVEL]
    assert verdicts("FlipOut is the best", *ours, *beaten, *results("snip", [91, 91.3, 91])) == [Verdict.FAILS]


def unfinished(method: str, sparsity: float = 0.999, seeds: int = 3, **more: Any) -> list[Record]:
    return [replace(run, result=None) for run in results(method, [0.0] * seeds, sparsity, **more)]


def test_a_grid_that_is_not_finished_says_nothing_about_the_best() -> None:
    """Methods that a grid runs later could be better. One that is better now decides."""
    ours, later = results("flipout-paper", [90, 90.2, 89.9]), unfinished("snip")
    assert verdicts("FlipOut is the best", *ours, *results("magnitude", [70, 71, 72]), *later) == [Verdict.OPEN]
    assert verdicts("FlipOut is the best", *ours, *results("magnitude", [95, 95.1, 95]), *later) == [Verdict.FAILS]
    low = [*results("flipout-paper", [90, 90.2, 89.9], 0.9), *results("magnitude", [90, 90.1, 90], 0.9)]
    assert verdicts("Below 99.61 %", *low) == [Verdict.HOLDS]
    assert verdicts("Below 99.61 %", *low, *unfinished("snip", 0.9)) == [Verdict.OPEN]
    four = {0.0: [50.0] * 3, 0.5: [50.0] * 3, 1.0: [50.0] * 3, 2.0: [70.0] * 3}
    rest = [replace(run, result=None) for run in scan({4.0: [0.0] * 3}, "p", "table3")]
    assert verdicts("p = 1, 2 and 4", *scan(four, "p", "table3"), *rest) == [Verdict.OPEN]
    six = scan({**four, 3.0: [60.0] * 3}, "p", "table3")
    assert verdicts("p = 2", *six) == [Verdict.HOLDS]
    assert verdicts("p = 2", *six, *rest) == [Verdict.OPEN]


def test_without_other_methods_there_is_no_verdict() -> None:
    assert verdicts("FlipOut is the best", *results("flipout-paper", [80, 81])) == []
    assert verdicts("Below 99.61 %", *results("flipout-paper", [80, 81], 0.9)) == []


def test_within_a_point() -> None:
    close = [*results("flipout-paper", [90.0] * 3, 0.9), *results("magnitude", [90.9] * 3, 0.9)]
    far = [*results("flipout-paper", [90.0] * 3, 0.8), *results("magnitude", [91.1] * 3, 0.8)]
    single = [*results("flipout-paper", [90.0], 0.7), *results("magnitude", [90.0], 0.7)]
    assert verdicts("Below 99.61 %", *single, *close, *far) == [Verdict.OPEN, Verdict.FAILS, Verdict.HOLDS]


def scan(values: dict[float, list[float]], option: str, part: str) -> list[Record]:
    runs = []
    for value, accuracies in values.items():
        chosen: dict[str, Any] = {option: value}
        runs += [
            run(accuracy, part, method="flipout-paper", validate=True, sparsity=0.9, seed=seed, **chosen)
            for seed, accuracy in enumerate(accuracies)
        ]
    return runs


@pytest.mark.parametrize(
    ("ours", "best", "verdict"),
    [
        ([90.0, 90.2, 90.1], [91.0, 91.2, 91.1], Verdict.HOLDS),
        ([90.0, 90.2, 90.1], [95.0, 95.2, 95.1], Verdict.FAILS),
        ([50.0, 80.0, 60.0], [70.0, 90.0, 61.0], Verdict.LEVEL),
        ([90.0], [95.0], Verdict.OPEN),
        ([95.0, 95.2], [90.0, 90.2], Verdict.OPEN),
    ],
)
def test_near_the_best(ours: list[float], best: list[float], verdict: Verdict) -> None:
    others = {p: [10.0] * len(ours) for p in (0.0, 0.5, 1.0)}
    assert verdicts("p = 2", *scan({**others, 2.0: ours, 4.0: best}, "p", "table3")) == [verdict]
    assert verdicts("p = 2", *scan({2.0: ours, 4.0: best}, "p", "table3")) == [Verdict.OPEN]
    sixteen = {0.75 + i / 20: [10.0] * len(ours) for i in range(16)}
    runs = scan({**sixteen, 1.0: ours, 1.5: best}, "noise", "table2")
    assert verdicts("λ = 1", *runs) == [verdict]


def test_large_powers() -> None:
    values = {
        p: [mean - 1, mean, mean + 1] for p, mean in ((0.0, 50.0), (0.5, 60.0), (1.0, 70.0), (2.0, 80.0), (4.0, 75.0))
    }
    assert verdicts("p = 1, 2 and 4", *scan(values, "p", "table3")) == [Verdict.HOLDS]
    assert verdicts("p = 1, 2 and 4", *scan({**values, 4.0: [40.0, 41.0, 42.0]}, "p", "table3")) == [Verdict.FAILS]


def test_noise_hurts_and_then_helps() -> None:
    def pair(sparsity: float, noisy: list[float], quiet: list[float]) -> list[Record]:
        without: dict[str, Any] = {"noise": 0.0}
        return [
            *(run(a, "ablation", method="flipout-paper", sparsity=sparsity, seed=i) for i, a in enumerate(noisy)),
            *(
                run(a, "ablation", method="flipout-paper", sparsity=sparsity, seed=i, **without)
                for i, a in enumerate(quiet)
            ),
        ]

    low, high = [80.0, 81.0, 82.0], [90.0, 91.0, 92.0]
    assert verdicts("Noise makes FlipOut worse", *pair(0.9, low, high)) == [Verdict.HOLDS]
    assert verdicts("Noise makes FlipOut worse", *pair(0.9, high, low), *pair(0.999, low, high)) == [Verdict.FAILS]
    assert verdicts("Noise makes FlipOut better", *pair(0.999, high, low)) == [Verdict.HOLDS]
    assert verdicts("Noise makes FlipOut better", *pair(0.9, high, low), *pair(0.999, low, high)) == [Verdict.FAILS]


def test_snip_collapses_and_a_layer_dies() -> None:
    dead = [run(10, "results", ("fc",), method="snip", sparsity=0.999, seed=i) for i in range(3)]
    alive = [run(90, "results", ("fc",), method="snip", sparsity=0.999, seed=i) for i in range(3, 6)]
    puzzling = [run(10, "results", method="snip", sparsity=0.999, seed=6)]
    assert verdicts("SNIP collapses at", *dead) == [Verdict.HOLDS]
    assert verdicts("SNIP collapses at", *dead[:2]) == [Verdict.OPEN]
    assert verdicts("SNIP collapses at", *alive) == [Verdict.FAILS]
    assert verdicts("SNIP collapses at", *dead, *alive) == [Verdict.MIXED]
    assert verdicts("SNIP collapses because", *dead, *alive) == [Verdict.HOLDS]
    assert verdicts("SNIP collapses because", *dead, *alive, *puzzling) == [Verdict.MIXED]


def test_dense_runs_of_other_networks_are_not_mixed() -> None:
    ours = [*results("flipout-paper", [80, 81]), *results("dense", [90.0, 90.0], 0.0)]
    other = make_settings("paper", model="lenet-5", method="dense", sparsity=0.0)
    foreign = Record(other.folder_name(), other, ("results",), {**ours[0].result, "test_accuracy": 0.1})  # type: ignore[dict-item]
    text = render_results_page([Records("both", (*ours, foreign))], "x")
    assert "| Dense (not pruned) | 90.00 ± 0.00 |" in text


def test_the_page_lists_every_claim(records: Records) -> None:
    text = render_results_page([records], "flipout claims x")
    assert text.startswith("# Results")
    assert "`flipout claims x`" in text
    assert all(claim.text in text for claim in CLAIMS)
    assert "Not run yet." in render_results_page([Records("none", tuple(results("random", [1.0])))], "x")
    assert "over-shoots in percent of all shots" in text
    assert "with more than half of the weights pruned, " in text


def test_verdicts_are_counted_and_written_out() -> None:
    level = [*results("flipout-paper", [80, 81, 82]), *results("magnitude", [79, 81, 82])]
    single = [*results("flipout-paper", [80], 0.9999), *results("magnitude", [70], 0.9999)]
    text = render_results_page([Records("test", (*level, *single))], "x")
    assert "2 comparisons: not significant (1), cannot be said here (1)." in text
    assert "**not significant**. 99.9 %: FlipOut 81.00 ± 1.00" in text
    assert "+0.33 (-1.10 to +1.77)" in text
    assert "**cannot be said here**. 99.99 %: FlipOut 80.00, " in text


def test_differences_are_paired_by_seed() -> None:
    """A constant gain over seeds that differ much is a gain; the same numbers in another order show nothing."""
    ours = results("flipout-paper", [70, 80, 90])
    assert verdicts("FlipOut is the best", *ours, *results("magnitude", [69, 78.9, 89.1])) == [Verdict.HOLDS]
    assert verdicts("FlipOut is the best", *ours, *results("magnitude", [89.1, 78.9, 69])) == [Verdict.LEVEL]
    diverged = [replace(run, result=None, failure="diverged") for run in results("flipout-paper", [0], 0.999)]
    lucky = [replace(run, settings=run.settings.model_copy(update={"seed": 7})) for run in diverged]
    assert verdicts("FlipOut is the best", *ours, *lucky, *results("magnitude", [60, 70.1, 79.9])) == [Verdict.OPEN]


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ([], Verdict.UNTESTED),
        (["HOLDS", "HOLDS"], Verdict.HOLDS),
        (["HOLDS", "LEVEL"], Verdict.MIXED),
        (["HOLDS", "FAILS"], Verdict.MIXED),
        (["FAILS", "LEVEL", "OPEN"], Verdict.FAILS),
        (["LEVEL", "OPEN"], Verdict.OPEN),
    ],
)
def test_the_verdict_of_all_comparisons(found: list[str], verdict: Verdict) -> None:
    assert overall([Finding("network", Verdict[name], "") for name in found]) == verdict


def test_the_table_of_claims_has_a_column_for_each_network() -> None:
    runs = [*results("flipout-paper", [80, 81, 82]), *results("magnitude", [70, 71, 72])]
    held_out = scan({p: [90.0, 90.2] for p in (0.0, 0.5, 1.0, 2.0, 4.0)}, "p", "table3")
    table = claims_table("", Records("one", (*runs, *held_out)))
    assert table is not None
    assert table.heading == ("claim of the paper", "MLP on digits, 350 epochs")
    assert table.rows[0][1] == "holds"
    shorter = [*results("flipout-paper", [60], epochs=3), *results("magnitude", [70], epochs=3)]
    table = claims_table("", Records("two", (*runs, *shorter)))
    assert table is not None
    assert table.heading[1:] == ("all networks", "MLP on digits, 350 epochs", "MLP on digits, 3 epochs")
    assert list(table.rows[0][1:]) == [
        "holds in part (1 of 2)",
        "holds",
        "cannot be said here",
    ]
    assert claims_table("", Records("none", tuple(results("random", [1.0])))) is None
