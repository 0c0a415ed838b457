"""What a user may pass as granularity."""

from __future__ import annotations

from typing import Any

import pytest

from flipout.units import Granularity, as_granularity


@pytest.mark.parametrize(
    ("given", "kind", "numbers"),
    [
        ("weight", "weight", (1, 1)),
        ("kernel", "kernel", (1, 1)),
        ("channel", "channel", (1, 1)),
        ("2:4", "pattern", (2, 4)),
        (" 1 : 8 ", "pattern", (1, 8)),
        ((16, 1), "block", (16, 1)),
        ([4, 4], "block", (4, 4)),
        ("(16, 1)", "block", (16, 1)),
        ("16x1", "block", (16, 1)),
    ],
)
def test_every_form(given: Any, kind: Any, numbers: tuple[int, int]) -> None:
    assert as_granularity(given, "sum") == Granularity(kind, numbers, "sum")


@pytest.mark.parametrize("given", ["4:2", "0:4", "4:4", "filter", (0, 4), (1, 2, 3), (1.5, 2), (True, 1), 4, None, ""])
def test_nonsense_is_refused_with_the_forms_that_are_taken(given: Any) -> None:
    with pytest.raises(ValueError, match="granularity is"):
        as_granularity(given)


def test_an_unknown_reduction_is_refused() -> None:
    reduction: Any = "max"
    with pytest.raises(ValueError, match="reduce"):
        as_granularity("kernel", reduction)
