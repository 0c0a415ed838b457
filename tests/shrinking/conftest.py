"""In these tests shrinks cost nothing, or no small network would be worth one."""

from __future__ import annotations

import pytest

from flipout.shrinking import shrinker


@pytest.fixture
def _free_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shrinker, "FIXED_COST", 0)
    monkeypatch.setattr(shrinker, "COST_PER_WEIGHT", 0)
