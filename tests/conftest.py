"""Settings of the tests that need the package. (In pyproject.toml they would import it before coverage is measured.)"""

from __future__ import annotations

import gc
import os
import tempfile
import warnings

import hypothesis
import pytest

from tests.attacks import VARIABLE, draw_fresh_seed

CACHE = pytest.StashKey["tempfile.TemporaryDirectory[str]"]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[CACHE] = tempfile.TemporaryDirectory()
    os.environ["FLIPOUT_CACHE"] = config.stash[CACHE].name  # speeds that tests measure are not the user's
    draw_fresh_seed()
    hypothesis.settings.register_profile("without deadline", deadline=None)  # no test may depend on the time it takes
    hypothesis.settings.load_profile("without deadline")
    for name in ("UnfinishedWarning", "DeadLayerWarning"):
        config.addinivalue_line("filterwarnings", f"ignore::flipout.{name}")
    config.addinivalue_line("filterwarnings", "ignore::flipout.kernels.MissingKernelsWarning")  # without a compiler


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[CACHE].cleanup()


def pytest_report_header() -> str:
    return _seed()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    if exitstatus:
        terminalreporter.write_line(_seed())


def _seed() -> str:
    return f"{VARIABLE}={draw_fresh_seed()} repeats the random cases of this session"


def pytest_sessionfinish() -> None:
    """Collect the pruners that tests have left. Later they would warn where the filters of tests do not hold."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()
