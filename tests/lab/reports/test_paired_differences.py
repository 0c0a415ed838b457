"""Differences to global magnitude, paired by seed."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from flipout_lab.reports.records import Record
from flipout_lab.reports.report_tables import paired_differences, paired_table
from flipout_lab.reports.seed_statistics import PairedDifference, holm
from flipout_lab.runs.settings import validated


def run(method: str, seed: int, accuracy: float | None, sparsity: float = 0.99, **options: object) -> Record:
    settings = validated({"method": method, "sparsity": sparsity, "seed": seed, **options})
    result = None if accuracy is None else {"test_accuracy": accuracy, "dead_layers": [], "seconds": 1.0}
    return Record(settings.folder_name(), settings, ("results",), result)


@settings(deadline=None)
@given(st.lists(st.floats(-50, 50), min_size=3, max_size=8))
def test_the_interval_is_students(values: list[float]) -> None:
    difference = PairedDifference(tuple(values))
    if statistics.stdev(values) > 1e-6:
        expected = ttest_1samp(values, 0).confidence_interval(0.95)
        assert difference.interval == pytest.approx((expected.low, expected.high))
    assert difference.interval is not None
    low, high = difference.interval
    assert difference.is_significant == (low > 0 or high < 0)


def test_fewer_than_three_seeds_show_nothing() -> None:
    assert not PairedDifference((5.0,)).is_significant
    assert not PairedDifference((5.0, 5.001)).is_significant
    assert str(PairedDifference((5.0,))) == "+5.00 (one seed)"
    assert str(PairedDifference((5.0, 5.0))) == "+5.00 (two seeds)"


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(-9, 99), min_size=1, max_size=6), max_size=8))
def test_holms_correction_against_adjusted_p_values(families: list[list[int]]) -> None:
    differences = [PairedDifference(tuple(map(float, values))) for values in families]
    tested = [each for each in differences if len(each.values) >= 3]
    for each in tested:
        if statistics.stdev(each.values):
            assert each.p_value == pytest.approx(ttest_1samp(each.values, 0).pvalue, abs=1e-12)
    ordered = sorted(each.p_value for each in tested)

    def adjusted(p: float) -> float:
        return max((len(ordered) - rank) * q for rank, q in enumerate(ordered) if q <= p)

    for each, corrected in zip(differences, holm(differences), strict=True):
        expected = each in tested and adjusted(each.p_value) <= 0.05
        assert corrected.is_significant == expected
        assert corrected.interval == each.interval


def test_an_end_close_to_zero_shows_its_side() -> None:
    low, high = PairedDifference((0.1, 0.12, 0.2, 0.03)).interval or (0.0, 0.0)
    assert 0 < low < 0.005
    assert str(PairedDifference((0.1, 0.12, 0.2, 0.03))) == f"+0.11 (+{low:.3f} to +{high:.3f})"
    assert str(PairedDifference((0.1, 0.2, 0.06))) == "+0.12 (-0.06 to +0.30)"


def test_seeds_are_paired_and_unpaired_ones_left_out() -> None:
    runs = [
        *(run("magnitude", seed, accuracy) for seed, accuracy in ((0, 0.80), (1, 0.90), (2, 0.70))),
        *(run("flipout", seed, accuracy) for seed, accuracy in ((0, 0.85), (1, 0.96), (3, 0.10))),
        run("flipout", 2, None),
        run("flipout", 0, 0.5, sparsity=0.5),  # magnitude has no run at this sparsity
        run("magnitude", 0, 0.9, schedule="cubic"),  # another schedule: its own reference
        run("magnitude", 0, 0.88, second_chances=True),
    ]
    found = paired_differences(runs)
    flipout = next(row for label, row in found.items() if label.startswith("FlipOut"))
    assert list(flipout) == [0.99]
    assert flipout[0.99].values == pytest.approx((5.0, 6.0))
    revived = next(row for label, row in found.items() if "second chances" in label)
    assert revived[0.99].values == pytest.approx((8.0,))
    table = paired_table("", runs)
    assert table is not None
    assert "+5.50" in table.markdown()


def test_a_method_without_a_schedule_is_compared_with_our_schedule() -> None:
    runs = [run("snip", 0, 0.7), run("magnitude", 0, 0.8), run("magnitude", 0, 0.6, schedule="paper")]
    assert paired_differences(runs)["SNIP"][0.99].values == pytest.approx((-10.0,))
    assert paired_differences([runs[0], runs[2]])["SNIP"][0.99].values == pytest.approx((10.0,))


def test_the_schedule_of_the_reference_is_the_same_for_all_seeds() -> None:
    ours, paper = [run("magnitude", 0, 0.8)], [run("magnitude", seed, 0.6, schedule="paper") for seed in range(3)]
    found = paired_differences([*(run("snip", seed, 0.7) for seed in range(3)), *ours, *paper])
    assert found["SNIP"][0.99].values == pytest.approx((-10.0,))


def test_a_seed_that_was_run_twice_counts_once() -> None:
    runs = [run("magnitude", 0, 0.8), run("flipout", 0, 0.9), run("flipout", 0, 0.5, threads=2)]
    assert paired_differences(runs)["FlipOut"][0.99].values == pytest.approx((10.0,))


def test_nothing_to_compare_with() -> None:
    assert paired_table("", [run("flipout", 0, 0.9)]) is None
