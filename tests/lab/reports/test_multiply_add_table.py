"""Granularities compared at equal multiply-adds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flipout_lab import make_settings
from flipout_lab.reports.records import Record
from flipout_lab.reports.report_tables import accuracy_at, multiply_add_table


def record(granularity: str, sparsity: float, share: float, accuracy: float, seed: int = 0) -> Record:
    settings = make_settings(
        data="digits", model="mlp", method="flipout", sparsity=sparsity, seed=seed, granularity=granularity
    )
    result = {
        "test_accuracy": accuracy,
        "validation_accuracy": None,
        "multiply_adds": {"dense": 10_000, "nonzero": round(10_000 * share)},
    }
    return Record(f"{granularity}-{sparsity}-{seed}", settings, ("all",), result)


def test_methods_are_compared_between_their_own_sparsities() -> None:
    runs = [
        record("weight", 0.5, 0.5, 0.9),
        record("weight", 0.75, 0.25, 0.8),
        record("channel", 0.5, 1.0, 0.95),
        record("channel", 0.75, 0.25, 0.6, seed=0),
        record("channel", 0.75, 0.25, 0.7, seed=1),
    ]
    table = multiply_add_table("title", runs)
    assert table is not None
    assert table.heading == ("method", "50.000%", "25.000%")
    assert [list(row) for row in table.rows] == [
        ["FlipOut", "90.00", "80.00"],
        ["FlipOut, channels", "80.00", "65.00"],  # halfway between 65 and 95 on the logarithm
    ]


def test_runs_of_one_granularity_need_no_such_table() -> None:
    assert multiply_add_table("title", [record("weight", 0.5, 0.5, 0.9), record("weight", 0.75, 0.3, 0.8)]) is None


@given(st.dictionaries(st.floats(0.01, 1), st.floats(0, 100), min_size=1, max_size=4), st.floats(0.01, 1))
def test_no_accuracy_is_made_up_outside_of_the_points(curve: dict[float, float], share: float) -> None:
    found = accuracy_at(curve, share)
    if share < min(curve) / 1.03 or share > max(curve) * 1.03:
        assert found is None
    elif found is None:
        assert share < min(curve) or share > max(curve)
    else:
        assert min(curve.values()) <= found + 1e-9
        assert found - 1e-9 <= max(curve.values())


def test_points_are_exact() -> None:
    assert accuracy_at({0.5: 90.0, 0.25: 80.0}, 0.25) == pytest.approx(80.0)
