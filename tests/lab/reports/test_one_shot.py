"""One-shot pruning beside gradual pruning, on the results page."""

from __future__ import annotations

from dataclasses import replace

from flipout_lab.paper.results_page import render_results_page
from flipout_lab.reports import Records
from flipout_lab.reports.labels import label_runs
from flipout_lab.reports.one_shot import complete, minus_magnitude_table
from flipout_lab.reports.records import Record
from tests.lab.reports.test_lead import runs

PART = "one shot"


def pruned(method: str, accuracies: list[float], **options: object) -> list[Record]:
    return runs("dense", accuracies, PART, one_shot=method, **options)


RUNS = [
    *runs("dense", [80, 81, 82], PART, sparsity=0.0),
    *pruned("magnitude", [50, 51, 52]),
    *pruned("magnitude", [10, 11, 12], recalibrate=False),
    *pruned("obs", [60, 61.1, 62]),
    *runs("magnitude", [74, 75.1, 76], PART),
]


def test_labels_name_the_method_of_one_shot_pruning() -> None:
    assert list(dict.fromkeys(label_runs(RUNS).values())) == [
        "Dense",
        "One shot: magnitude",
        "One shot: magnitude, batch norms as they were",
        "One shot: Optimal Brain Surgeon",
        "Global magnitude",
    ]
    assert [run.is_pruned for run in RUNS] == [False] * 3 + [True] * 12


def test_differences_are_those_to_magnitude_in_one_shot() -> None:
    rows = {row[0]: row[1] for row in minus_magnitude_table("", RUNS).rows}
    assert rows["One shot: Optimal Brain Surgeon"].startswith("+10.03 (")
    assert rows["Global magnitude"].startswith("+24.03 (")
    assert "One shot: magnitude" not in rows


def test_the_section_of_the_results_page() -> None:
    late = [replace(run, result=None) for run in runs("flipout", [70, 71, 72], PART)[:1]]
    late += runs("flipout", [70, 71, 72], PART)[1:]
    page = render_results_page([Records("one", (*RUNS, *late))], "x")
    section = page.partition("## One-shot beside gradual pruning")[2].partition("\n## ")[0]
    assert "| One shot: Optimal Brain Surgeon | 61.03 ± 1.00 |" in section
    assert "| Dense (not pruned) | 81.00 ± 1.00 |" in section
    assert "FlipOut" not in section
    assert len(complete([*RUNS, *late])) == len(RUNS)
    assert "One shot" not in page.replace(section, "").partition("## Which method")[2].partition("## The runs")[0]
