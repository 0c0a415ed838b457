"""No command reads or writes a user's data cache."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _own_data_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLIPOUT_DATA", str(tmp_path_factory.mktemp("data")))
