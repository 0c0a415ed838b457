"""In these tests shrinks cost nothing, or no small network would be worth one."""

from __future__ import annotations

import pytest

from flipout.shrinking import decision


@pytest.fixture
def _free_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision, "FIXED_COST", 0)
    monkeypatch.setattr(decision, "COST_PER_WEIGHT", 0)
