"""The paper's claims held against results, and its tables made again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flipout.lab import make_settings
from flipout.lab.errors import LabError
from flipout.lab.paper.claims import CLAIMS, Claim
from flipout.lab.paper.reproduction import check_item, grids_of, made_again, schedule_table
from flipout.lab.paper.results_page import results_page
from flipout.lab.reports import Record, Records


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
    (found,) = (one for one in CLAIMS if one.text.startswith(start))
    return found


def verdicts(start: str, *runs: Record) -> list[str]:
    return [finding.verdict for finding in claim(start).findings([Records("test", runs)])]


def results(method: str, accuracies: list[float], sparsity: float = 0.999, **more: Any) -> list[Record]:
    return [run(a, "results", method=method, sparsity=sparsity, seed=i, **more) for i, a in enumerate(accuracies)]


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        ([80, 81, 82], [70, 71, 72], "holds"),
        ([70, 71, 72], [80, 81, 82], "does not hold"),
        ([80, 81, 82], [79, 81, 82], "level"),
        ([80], [70], "open"),
    ],
)
def test_a_win_at_the_extreme(ours: list[float], theirs: list[float], verdict: str) -> None:
    found = verdicts("FlipOut is the best", *results("flipout", ours), *results("magnitude", theirs))
    assert found == [verdict]


def test_the_rival_is_the_best_of_the_others() -> None:
    runs = [*results("flipout", [80, 81]), *results("magnitude", [70, 71]), *results("snip", [90, 91])]
    assert verdicts("FlipOut is the best", *runs) == ["does not hold"]


def test_without_rivals_nothing_is_said() -> None:
    assert verdicts("FlipOut is the best", *results("flipout", [80, 81])) == []
    assert verdicts("Below that", *results("flipout", [80, 81], 0.9)) == []


def test_within_a_point() -> None:
    close = [*results("flipout", [90.0, 90.0], 0.9), *results("magnitude", [90.9, 90.9], 0.9)]
    far = [*results("flipout", [90.0, 90.0], 0.8), *results("magnitude", [91.1, 91.1], 0.8)]
    single = [*results("flipout", [90.0], 0.7), *results("magnitude", [90.0], 0.7)]
    assert verdicts("Below that", *single, *close, *far) == ["open", "does not hold", "holds"]


def scan(values: dict[float, list[float]], option: str, part: str) -> list[Record]:
    return [
        run(accuracy, part, method="flipout", validate=True, sparsity=0.9, seed=seed, **{option: value})
        for value, accuracies in values.items()
        for seed, accuracy in enumerate(accuracies)
    ]


@pytest.mark.parametrize(
    ("ours", "best", "verdict"),
    [
        ([90.0, 90.2], [91.0, 91.2], "holds"),
        ([90.0, 90.2], [95.0, 95.2], "does not hold"),
        ([50.0, 80.0], [70.0, 90.0], "level"),
        ([90.0], [95.0], "open"),
    ],
)
def test_near_the_best(ours: list[float], best: list[float], verdict: str) -> None:
    others = {p: [10.0] * len(ours) for p in (0.0, 0.5, 1.0)}
    assert verdicts("p = 2", *scan({**others, 2.0: ours, 4.0: best}, "p", "table3")) == [verdict]
    assert verdicts("p = 2", *scan({2.0: ours, 4.0: best}, "p", "table3")) == ["open"]
    sixteen = {0.75 + i / 20: [10.0] * len(ours) for i in range(16)}
    runs = scan({**sixteen, 1.0: ours, 1.5: best}, "noise", "table2")
    assert verdicts("λ = 1", *runs)[0] in {verdict, "holds"}


def test_large_powers() -> None:
    values = {0.0: [50.0, 51.0], 0.5: [60.0, 61.0], 1.0: [70.0, 71.0], 2.0: [80.0, 81.0], 4.0: [75.0, 76.0]}
    assert verdicts("p of 1, 2 and 4", *scan(values, "p", "table3")) == ["holds"]
    assert verdicts("p of 1, 2 and 4", *scan({**values, 4.0: [40.0, 41.0]}, "p", "table3")) == ["does not hold"]


def test_noise_is_said_to_hurt_and_then_to_help() -> None:
    def pair(sparsity: float, noisy: list[float], quiet: list[float]) -> list[Record]:
        return [
            run(a, "ablation", method="flipout", sparsity=sparsity, seed=i, **({"noise": 0.0} if off else {}))
            for off, accuracies in ((False, noisy), (True, quiet))
            for i, a in enumerate(accuracies)
        ]

    assert verdicts("Noise hurts FlipOut", *pair(0.9, [80, 81], [90, 91])) == ["holds"]
    assert verdicts("Noise hurts FlipOut", *pair(0.9, [90, 91], [80, 81])) == ["does not hold"]
    assert verdicts("Noise hurts FlipOut", *pair(0.999, [90, 91], [80, 81])) == ["holds"]


def test_snip_collapses_and_a_layer_died() -> None:
    dead = [run(10, "results", ("fc",), method="snip", sparsity=0.999, seed=i) for i in range(2)]
    alive = [run(90, "results", ("fc",), method="snip", sparsity=0.999, seed=3)]
    puzzling = [run(10, "results", method="snip", sparsity=0.999, seed=4)]
    assert verdicts("SNIP collapses at", *dead) == ["holds"]
    assert verdicts("SNIP collapses at", *alive) == ["does not hold"]
    assert verdicts("SNIP collapses at", *dead, *alive) == ["level"]
    assert verdicts("SNIP collapses because", *dead, *alive) == ["holds"]
    assert verdicts("SNIP collapses because", *dead, *alive, *puzzling) == ["does not hold"]


def test_dense_runs_of_other_networks_are_not_mixed() -> None:
    ours = [*results("flipout", [80, 81]), *results("dense", [90.0, 90.0], 0.0)]
    other = make_settings("paper", model="lenet-5", method="dense", sparsity=0.0)
    foreign = Record(other.folder_name(), other, ("results",), {**ours[0].result, "test_accuracy": 0.1})  # type: ignore[dict-item]
    text = results_page([Records("both", (*ours, foreign))], "x")
    assert "| Dense (nothing pruned) | 90.00 ± 0.00 |" in text


def test_the_page_says_what_was_not_measured(records: Records) -> None:
    text = results_page([records], "flipout claims x")
    assert text.startswith("# Results")
    assert "`flipout claims x`" in text
    assert all(claim.text in text for claim in CLAIMS)
    assert "Not measured." in results_page([Records("none", results("random", [1.0]))], "x")
    assert "over-shoots in percent of all shots" in text
    assert "pruned by more than half gained" in text


def test_tables_and_figures_made_again(records: Records, tmp_path: Path) -> None:
    (table,), written = made_again("table3", "quick", records, tmp_path)
    assert len(table.heading) == 11
    assert any(entry.bold for entry in table.rows[0])
    assert all(path.exists() for path in written)
    (table,), _ = made_again("table2", "quick", records, tmp_path)
    assert "λ = " in table.rows[0][1].text
    tables, written = made_again("figure-ablation", "quick", records, tmp_path)
    assert [row[0].text for row in tables[0].rows][:2] == ["FlipOut", "FlipOut, no noise"]
    assert {path.suffix for path in written} == {".png", ".pdf", ".md", ".csv", ".tex"}


def test_table_1_is_the_papers() -> None:
    column = [row[2].text for row in schedule_table("paper").rows]
    assert column == ["117", "70", "50", "39", "32"]
    assert len(schedule_table("quick").rows) == 5


def test_names_are_checked() -> None:
    with pytest.raises(LabError, match="did you mean 'table2'"):
        check_item("tabel2", "quick")
    with pytest.raises(LabError, match="unknown scale"):
        check_item("table2", "large")
    assert grids_of("paper", "table2") == ["paper-densenet121", "paper-resnet18", "paper-vgg19"]
    assert grids_of("quick", "") == ["quick"]
