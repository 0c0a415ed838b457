"""What the tests of the lab share: a Ctrl-C at a step, a command as it is typed, and results without times."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from flipout_lab import cli
from flipout_lab.runs.run_views import View


class StopAt(View):
    """Presses Ctrl-C at given steps."""

    def __init__(self, *steps: int) -> None:
        self.steps = steps

    def step(self, step: int) -> None:
        if step in self.steps:
            os.kill(os.getpid(), signal.SIGINT)


def flipout(monkeypatch: pytest.MonkeyPatch, *arguments: str, width: int = 160) -> int:
    """Run `flipout` with these arguments; return its exit code."""
    monkeypatch.setattr(sys, "argv", ["flipout", *arguments])
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", width)
    for console in (cli.console, cli.errors):
        monkeypatch.setattr(console, "_width", width)
    try:
        cli.main()
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


def untimed(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result without what differs each time: how long it took."""
    return {key: value for key, value in result.items() if key not in ("seconds", "processor_seconds")}
