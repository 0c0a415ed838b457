"""The rule for when two methods differ, and the interpolation of curves."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_rel

from flipout_lab.reports import Records
from flipout_lab.reports.labels import label_runs, percent
from flipout_lab.reports.seed_statistics import (
    Cell,
    beats,
    best,
    cells,
    dense_cell,
    has_larger_spread,
    interpolate,
    level_with_best,
)

percents = st.floats(0, 100)
several = st.lists(percents, min_size=3, max_size=6)


@settings(deadline=None)
@given(st.lists(st.tuples(percents, percents), min_size=3, max_size=6))
def test_a_win_is_a_paired_t_test(pairs: list[tuple[float, float]]) -> None:
    one, other = (Cell(tuple(values)) for values in zip(*pairs, strict=True))
    ahead = beats(one, other)
    if statistics.stdev(a - b for a, b in pairs) > 1e-6:
        low = ttest_rel(one.values, other.values).confidence_interval(0.95).low
        assert ahead == (low > 0) or abs(low) < 1e-9
    assert not (ahead and beats(other, one))


def test_seeds_are_paired_by_their_number() -> None:
    one, other = Cell((50.0, 70.0, 90.0), (0, 1, 2)), Cell((88.0, 68.0, 49.0, 1.0), (2, 1, 0, 5))
    assert one.minus(other).values == (1.0, 2.0, 2.0)
    assert Cell((1.0, 2.0), (0, 1)).minus(Cell((1.0, 2.0), (2, 3))).interval is None
    assert beats(Cell((9.0, 9.0), (0, 1)), Cell((1.0, 2.0), (1, 2))) is None


def test_one_seed_decides_nothing() -> None:
    assert beats(Cell((99.0,)), Cell((1.0, 2.0))) is None
    assert beats(Cell(()), Cell((1.0, 2.0))) is None
    assert Cell((99.0,)).spread is None


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("abcdef"), several, min_size=1))
def test_the_best_and_those_that_it_is_not_shown_to_beat(columns: dict[str, list[float]]) -> None:
    column = {name: Cell(tuple(values)) for name, values in columns.items()}
    top, level = best(column), level_with_best(column)
    assert top is not None
    assert column[top].mean == max(cell.mean for cell in column.values())
    assert top not in level
    assert all(not beats(column[top], column[name]) for name in level)
    assert all(beats(column[top], column[name]) for name in set(column) - level - {top})
    assert level_with_best({**column, "one seed": Cell((-1.0,))}) == level | {"one seed"}


def test_a_cell_without_values_is_not_the_best() -> None:
    column = {"a": Cell(()), "b": Cell((1.0,))}
    assert (best(column), level_with_best(column)) == ("b", set())
    assert (best({"a": Cell(())}), level_with_best({"a": Cell(())})) == (None, set())


distinct = st.integers(1, 999).map(lambda thousandths: thousandths / 1000)  # so that their logarithms differ


@given(st.lists(st.tuples(distinct, percents), min_size=2, max_size=8, unique_by=lambda p: p[0]))
def test_interpolation_goes_through_the_trade_off_and_not_beyond(points: list[tuple[float, float]]) -> None:
    """A run that collapsed does not lower the curve if a sparser run has a higher accuracy."""
    front = [(s, a) for s, a in points if not any(t > s and b >= a for t, b in points)]
    if len(front) > 1:
        for at, accuracy in front:
            assert interpolate(points, at) == pytest.approx(accuracy, abs=1e-6)
    low, high = min(front)[0], max(front)[0]
    assert interpolate(points, low * 0.99) is None
    assert interpolate(points, (1 + high) / 2) is None


def test_interpolation_is_linear_in_log_density() -> None:
    assert interpolate([(0.9, 90.0), (0.999, 70.0)], 0.99) == pytest.approx(80.0)


def test_labels_name_the_options_that_differ(records: Records) -> None:
    named = set(label_runs(records.in_part("ablation")).values())
    assert named == {"FlipOut (paper)", "FlipOut (paper), no noise"}
    assert set(label_runs(records.in_part("results")).values()) == {
        "FlipOut (paper)",
        "Global magnitude",
        "SNIP",
        "Dense",
        "Hoyer-Square, threshold 0.05",
    }


def test_cells_against_the_runs(records: Records) -> None:
    runs = records.in_part("results")
    found = cells(runs)
    mine = [r for r in runs if r.settings.method == "magnitude" and r.settings.sparsity == 0.75]
    values = [100 * r.result["test_accuracy"] for r in mine if r.result is not None]
    cell = found["Global magnitude"][0.75]
    assert cell.mean == pytest.approx(statistics.fmean(values))
    assert cell.spread == pytest.approx(statistics.stdev(values))
    assert cell.seeds == 2
    assert "Dense" not in found
    reference = dense_cell(runs)
    assert reference is not None
    assert reference.seeds == 2


def test_outcomes_are_interpolated_and_marked(records: Records) -> None:
    runs = records.in_part("results")
    row = cells(runs)["Hoyer-Square, threshold 0.05"]
    assert set(row) == {0.75, 0.9375, 0.999}
    assert all(cell.interpolated for cell in row.values())
    points = [
        (r.result["sparsity"], 100 * r.result["test_accuracy"])
        for r in runs
        if r.settings.option("lambda") and r.result
    ]
    for sparsity, cell in row.items():
        expected = interpolate(points, sparsity)
        assert cell.values == (() if expected is None else (expected,))
        assert ("†" in str(cell)) == (expected is not None)


def test_failures_and_missing_runs_are_shown(records: Records) -> None:
    assert str(cells(records.in_part("broken"))["Global magnitude"][0.95]) == "1 failed"
    assert str(cells(records.in_part("never"))["Random"][0.75]) == "missing"
    assert str(Cell((1.0, 3.0), failed=1)) == "2.00 ± 1.41 (1 failed)"


def test_a_seed_counts_once(records: Records) -> None:
    """Runs with the aim test have the same seeds as the runs without it."""
    runs = [run for run in records.runs if run.settings.method == "flipout-paper" and run.settings.sparsity == 0.75]
    runs = [run for run in runs if not run.settings.validate_ and "p" not in run.settings.given_options]
    assert len([run for run in runs if run.settings.option("noise") == 1.0]) == 4
    assert {label: row[0.75].seeds for label, row in cells(runs).items()} == {
        "FlipOut (paper)": 2,
        "FlipOut (paper), no noise": 2,
    }
    again = [*runs, *runs]
    assert cells(again) == cells(runs)


def test_a_method_with_diverged_seeds_does_not_win() -> None:
    assert beats(Cell((90.0, 91.0, 92.0), failed=1), Cell((10.0, 11.0, 12.0))) is None
    assert beats(Cell((90.0, 91.0, 92.0)), Cell((10.0, 11.0, 12.0), failed=1)) is True


def test_spreads_are_compared_by_an_f_test() -> None:
    assert not has_larger_spread(Cell((1.0, 2.0, 3.0)), Cell((1.0, 1.5, 2.0)))
    assert has_larger_spread(Cell((1.0, 20.0, 30.0)), Cell((1.0, 1.5, 2.0)))
    assert not has_larger_spread(Cell((1.0,)), Cell((1.0, 1.5)))


def test_percent() -> None:
    assert percent(0.99999) == "99.999 %"
    assert percent(0.0) == "0 %"
    assert [percent(1 - 2.0**-m) for m in (2, 4, 6, 8, 10)] == ["75 %", "93.75 %", "98.44 %", "99.61 %", "99.9 %"]
