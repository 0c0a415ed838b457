"""A command as it is typed, for the tests of the command line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lab.helpers import flipout

Typed = Callable[..., tuple[int, str]]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """Runs a command; returns its exit code and what it printed."""

    def run(*arguments: str, width: int = 160) -> tuple[int, str]:
        code = flipout(monkeypatch, *arguments, width=width)
        out, err = capsys.readouterr()
        return code, out + err

    return run
