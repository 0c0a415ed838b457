"""Which numbers whole units can make up, against all subsets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flipout.ranking.reachable_counts import least_reachable, reachable

UNITS = st.dictionaries(st.integers(1, 12), st.integers(0, 7), min_size=1, max_size=4)


def all_sums(units: dict[int, int]) -> set[int]:
    sums = {0}
    for size, number in units.items():
        for _ in range(number):
            sums |= {total + size for total in sums}
    return sums


@given(UNITS)
def test_a_number_is_reachable_if_some_subset_has_it(units: dict[int, int]) -> None:
    total = sum(size * number for size, number in units.items())
    assert {n for n in range(-2, total + 3) if reachable(units, n)} == all_sums(units)


@given(UNITS, st.data())
def test_the_least_reachable_number(units: dict[int, int], data: st.DataObject) -> None:
    sums = all_sums(units)
    least = data.draw(st.integers(0, max(sums)))
    assert least_reachable(units, least) == min(n for n in sums if n >= least)


def test_many_units_are_no_problem() -> None:
    units = {9: 10**7, 49: 192, 1: 5120}
    assert reachable(units, 12_345_678)
    assert not reachable({9: 10**7, 6: 10**7}, 12_345_677)
    assert least_reachable({9: 10**7, 6: 1}, 12_345_670) == 12_345_675


def test_more_than_there_is() -> None:
    with pytest.raises(ValueError, match="cannot choose 10 of 9 weights"):
        least_reachable({3: 3}, 10)
