"""Settings of the tests that need the package. (In pyproject.toml they would import it before coverage is measured.)"""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    for name in ("UnfinishedWarning", "DeadLayerWarning"):
        config.addinivalue_line("filterwarnings", f"ignore::flipout.{name}")
