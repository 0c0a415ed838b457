"""Accuracy against hours: methods at equal time, from runs that differ in their epochs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flipout_lab.paper.results_page import render_results_page
from flipout_lab.reports import Records
from flipout_lab.reports.equal_time import at_time, equal_time_table, networks_at_equal_time, time_chart
from flipout_lab.reports.records import Record
from flipout_lab.reports.seed_statistics import Cell
from flipout_lab.sweeps.grid import read_grid
from tests.lab.reports.test_lead import runs


def timed(method: str, epochs: int, minutes: float, accuracies: list[float], **settings: object) -> list[Record]:
    made = runs(method, accuracies, "equal time", epochs=epochs, **settings)
    return [replace(run, result={**(run.result or {}), "seconds": 60 * minutes}) for run in made]


RUNS = [
    *timed("flipout", 8, 32, [70, 71, 72]),
    *timed("flipout", 15, 60, [74, 75, 76]),
    *timed("flipout", 20, 30, [71, 72, 73], end=0.2),
    *timed("flipout", 80, 120, [75, 76.1, 77], end=0.2),
    *timed("magnitude", 20, 30, [69, 70, 71], end=0.2),
    *timed("dense", 15, 62, [80, 81, 82], sparsity=0.0),
]


def test_methods_at_the_time_of_the_longest_training_of_flipout() -> None:
    (found,) = networks_at_equal_time(RUNS).values()
    table = equal_time_table("", found)
    assert table is not None
    rows = {row[0]: dict(zip(table.heading, row, strict=True)) for row in table.rows}
    assert rows["FlipOut"]["minutes"] == "32.0, 60.0"
    assert rows["FlipOut"]["accuracy"] == "75.00 ± 1.00"
    assert rows["FlipOut, end 0.2"]["accuracy"] == "74.02 ± 1.00"  # half way between 30 and 120 minutes
    assert rows["FlipOut, end 0.2"]["minus FlipOut"].startswith("-0.98 (")
    assert rows["Global magnitude, end 0.2"]["accuracy"] == "not reached"
    assert rows["Dense"]["accuracy"] == "81.00 ± 1.00"  # 62 minutes are just as long


@given(
    st.lists(
        st.tuples(st.floats(0.1, 50), st.floats(0, 100)), min_size=1, max_size=6, unique_by=lambda point: point[0]
    ),
    st.floats(0.1, 50),
)
def test_the_accuracy_at_a_time(points: list[tuple[float, float]], hours: float) -> None:
    times, accuracies = zip(*sorted(points), strict=True)
    cell = at_time({time: Cell((accuracy,), (7,)) for time, accuracy in points}, hours)
    if times[0] / 1.09 <= hours <= times[-1] / 0.91:
        expected = np.interp(np.log(hours), np.log(times), accuracies)
        assert cell.by_seed == {7: pytest.approx(expected, abs=1e-6)}
    elif not times[0] / 1.11 <= hours <= times[-1] / 0.89:
        assert not cell.values


def test_a_sparsity_that_is_not_finished_is_left_out() -> None:
    late = [replace(run, result=None) for run in timed("magnitude", 20, 30, [0.0], end=0.2, sparsity=0.9)]
    begun = timed("flipout", 15, 60, [74, 75, 76], sparsity=0.9)
    (found,) = networks_at_equal_time([*RUNS, *begun, *late]).values()
    assert found == RUNS


def test_times_of_the_wall_clock_do_not_stand_beside_those_of_the_processor() -> None:
    measured = [replace(run, result={**(run.result or {}), "processor_seconds": 60.0}) for run in RUNS[:-3]]
    (found,) = networks_at_equal_time([*measured, *RUNS[-3:]]).values()
    assert found == measured


def test_a_figure_of_accuracy_against_hours() -> None:
    chart = time_chart(RUNS, 0.99)
    curves = {curve.label: curve for curve in chart.curves}
    assert curves.keys() == {"FlipOut", "FlipOut, end 0.2", "Global magnitude, end 0.2", "Dense"}
    assert curves["FlipOut"].x == pytest.approx((32 / 60, 1.0))
    assert curves["FlipOut"].y == pytest.approx((71, 75))


def test_the_results_page_shows_it(tmp_path: Path) -> None:
    text = render_results_page([Records("one", tuple(RUNS))], "x", tmp_path)
    section = text.partition("## Accuracy at equal time\n")[2].partition("\n## ")[0]
    assert "| FlipOut, end 0.2 | 99 % | 30.0, 120.0 |" in section
    assert "-hours.png)" in section
    assert "Accuracy at equal time" not in render_results_page([Records("one", tuple(runs("magnitude", [70])))], "x")


def test_the_grid_covers_the_methods_that_are_compared() -> None:
    planned = [run.settings for run in read_grid("equal-time-resnet10").runs()]
    assert {(run.method, run.option("end")) for run in planned} == {
        ("flipout", 0.5),
        ("flipout", 0.2),
        ("magnitude", 0.2),
        ("dense", None),
    }
    for method in {run.method for run in planned}:
        assert {run.seed for run in planned if run.method == method} == {0, 1, 2}
    default = {run.epochs for run in planned if run.method == "flipout" and run.option("end") == 0.5}
    others = {run.epochs for run in planned if run.option("end") == 0.2}
    assert default == {15}
    assert min(others) > 15  # they train faster, so they train for longer
