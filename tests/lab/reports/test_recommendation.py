"""What a report recommends in each situation, and what it costs."""

from __future__ import annotations

from typing import Any

from flipout_lab.reports.recommendation import recommendation_table
from tests.lab.reports.test_channels import CHANNELS, sized
from tests.lab.reports.test_lead import runs


def table(*given: Any) -> list[list[str]]:
    found = recommendation_table("", [run for each in given for run in each])
    return [] if found is None else [list(row) for row in found.rows]


DENSE = runs("dense", [80, 81, 82.1], sparsity=0.0)
MAGNITUDE = runs("magnitude", [70, 71, 72])


def one_shot(accuracies: list[float], sparsity: float) -> Any:
    return runs("dense", accuracies, part="one shot", sparsity=sparsity, one_shot="obs")


def test_what_is_recommended_has_its_accuracy_and_its_cost() -> None:
    (flipout,) = table(DENSE, MAGNITUDE, runs("flipout", [74, 75.1, 76]))
    assert "99" in flipout[0]
    assert flipout[1] == "FlipOut"
    assert flipout[2].startswith("75.03")
    assert flipout[3].startswith("-6.00 (")
    (magnitude,) = table(DENSE, MAGNITUDE, runs("flipout", [60, 61, 62.1]))
    assert magnitude[1] == "global magnitude"
    assert magnitude[2].startswith("71.00")


def test_one_shot_pruning_is_recommended_up_to_what_costs_less_than_a_point() -> None:
    gradual = DENSE, MAGNITUDE, runs("flipout", [74, 75.1, 76])
    shots = one_shot([80, 80.9, 82], 0.5), one_shot([79.5, 80.4, 81.6], 0.7), one_shot([70, 71, 72.3], 0.9)
    row = table(*gradual, *shots)[-1]
    assert "70 %" in row[1]
    assert row[2].startswith("80.50")
    assert "50 %" in table(*gradual, one_shot([20, 21, 22], 0.5), one_shot([10, 11, 12], 0.7))[-1][1]


def test_the_best_way_to_a_smaller_network_is_recommended_for_each_size() -> None:
    gradual = DENSE, MAGNITUDE, runs("flipout", [74, 75.1, 76])
    whole = sized("dense", [80, 81, 82.1], 1000, 1000, sparsity=0.0)
    half = sized("flipout", [77, 78.1, 79], 1000, 499, sparsity=0.5, **CHANNELS)
    layers = sized("flipout", [76, 77, 78], 1000, 499, sparsity=0.5, scope="layer", **CHANNELS)
    smaller = sized("dense", [74, 75, 76], 490, 490, sparsity=0.0, width=0.7)
    row = table(*gradual, whole, half, layers, smaller)[-1]
    assert "half" in row[0]
    assert (row[1], row[2]) == ("FlipOut, in channels", "78.03 ± 1.00")
    better = sized("dense", [79, 80.2, 81], 490, 490, sparsity=0.0, width=0.7)
    assert "dense" in table(*gradual, whole, half, better)[-1][1]
    assert len(table(*gradual, whole, half[:2])) == len(table(*gradual))


def test_nothing_is_recommended_without_a_dense_network_or_with_few_seeds() -> None:
    assert not table(MAGNITUDE, runs("flipout", [74, 75.1, 76]))
    assert not table(DENSE, MAGNITUDE[:2], runs("flipout", [74, 75.1]))
