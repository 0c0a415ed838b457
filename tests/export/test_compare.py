"""Whether outputs are the same but for rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nan

from flipout.graph.comparison import batch_of, distance, leaves, unlike

ONES = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("expected", "found", "told"),
    [
        (ONES, ONES + 1e-6, None),
        (ONES, ONES + 1e-3, "by 1.0e-03"),
        (ONES, ONES.double(), "float64 instead of"),
        (ONES, ONES[:1], "the shape (1, 3)"),
        ([ONES, ONES], [ONES], "1 of them instead of 2"),
        (torch.tensor([nan, torch.inf]), torch.tensor([nan, torch.inf]), None),
        (torch.tensor([nan, torch.inf]), torch.tensor([nan, -torch.inf]), "by inf"),
        (torch.tensor([1, 2, 3]), torch.tensor([1, 2, 4]), "1 of them"),
        (ONES > 0, ONES > 2, "6 of them"),
        ({"n": 3, "s": "a"}, {"n": 3, "s": "a"}, None),
        ({"n": 3, "s": "a"}, {"n": 4, "s": "a"}, "4 instead of 3"),
        (torch.complex(ONES, ONES), torch.complex(ONES, ONES + 1), "by 1.0e+00"),
        (ONES, 3, "3 instead of"),
    ],
)
def test_what_differs_is_told(expected: Any, found: Any, told: str | None) -> None:
    difference = unlike(expected, found, 1e-5)
    assert difference is None if told is None else told in str(difference)


def test_a_large_output_hides_no_error_in_a_small_one() -> None:
    """Each is held to the largest that stands in its place, or to a share of the largest of all."""
    expected = torch.tensor([[1e4, 1.0], [-1e4, 2.0]])
    wrong = expected + torch.tensor([0.0, 0.5])
    assert unlike(expected, wrong, 1e-3, shared=1e-6) is not None
    assert unlike(expected, wrong, 1e-3, shared=1.0) is None


def test_the_largest_difference() -> None:
    assert distance({"a": ONES, "b": 3}, {"a": ONES + 0.25, "b": 3}) == 0.25
    assert distance(torch.tensor([torch.inf, 1.0]), torch.tensor([torch.inf, 1.0])) == 0
    assert len(leaves({"a": (ONES, [ONES])})) == 2


def test_the_batch() -> None:
    assert batch_of((ONES, torch.ones(2))) == 2
    for wrong in ((ONES, torch.ones(3)), (torch.tensor(1.0), ONES), (torch.tensor(1.0),)):
        with pytest.raises(ValueError, match="must be the batch"):
            batch_of(wrong)
