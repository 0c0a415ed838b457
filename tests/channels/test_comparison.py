"""Comparison of outputs up to rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nan

from flipout.channels.comparison import (
    as_arguments,
    as_example,
    batch_size,
    describe_difference,
    largest_difference,
    output_leaves,
)

ONES = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("expected", "found", "message"),
    [
        (ONES, ONES + 1e-6, None),
        (ONES, ONES + 1e-3, "off by 1.0e-03"),
        (ONES, ONES.double(), "float64 instead of"),
        (ONES, ONES[:1], "shape (1, 3)"),
        ([ONES, ONES], [ONES], "1 outputs instead of 2"),
        (torch.tensor([nan, torch.inf]), torch.tensor([nan, torch.inf]), None),
        (torch.tensor([nan, torch.inf]), torch.tensor([nan, -torch.inf]), "off by inf"),
        (torch.tensor([1, 2, 3]), torch.tensor([1, 2, 4]), "1 elements differ"),
        (ONES > 0, ONES > 2, "6 elements differ"),
        ({"n": 3, "s": "a"}, {"n": 3, "s": "a"}, None),
        ({"n": 3, "s": "a"}, {"n": 4, "s": "a"}, "4 instead of 3"),
        (torch.complex(ONES, ONES), torch.complex(ONES, ONES + 1), "off by 1.0e+00"),
        (ONES, 3, "3 instead of"),
    ],
)
def test_differences_are_described(expected: Any, found: Any, message: str | None) -> None:
    difference = describe_difference(expected, found, 1e-5)
    assert difference is None if message is None else message in str(difference)


def test_a_large_output_does_not_hide_an_error_in_a_small_one() -> None:
    """The tolerance is relative to the largest value at the same position, or to a share of the largest of all."""
    expected = torch.tensor([[1e4, 1.0], [-1e4, 2.0]])
    wrong = expected + torch.tensor([0.0, 0.5])
    assert describe_difference(expected, wrong, 1e-3, global_share=1e-6) is not None
    assert describe_difference(expected, wrong, 1e-3, global_share=1.0) is None


def test_the_largest_difference() -> None:
    assert largest_difference({"a": ONES, "b": 3}, {"a": ONES + 0.25, "b": 3}) == 0.25
    assert largest_difference(torch.tensor([torch.inf, 1.0]), torch.tensor([torch.inf, 1.0])) == 0
    assert len(output_leaves({"a": (ONES, [ONES])})) == 2


def test_the_batch_size() -> None:
    assert batch_size((ONES, torch.ones(2))) == 2
    for wrong in ((ONES, torch.ones(3)), (torch.tensor(1.0), ONES), (torch.tensor(1.0),)):
        with pytest.raises(ValueError, match="batch"):
            batch_size(wrong)


def test_what_is_no_example_is_an_error_that_says_what_to_pass() -> None:
    with pytest.raises(TypeError, match=r"example_input\['flag'\] is a bool: pass only the arguments that are tensors"):
        as_arguments({"x": ONES, "flag": True})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match=r"is a dictionary, and here inputs are passed by position"):
        as_example({"x": ONES})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"contains a list: pass a tensor, or a tuple"):
        as_example(([ONES],))  # type: ignore[arg-type]
