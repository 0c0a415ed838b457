"""Runs a command as it is typed."""

from __future__ import annotations

import sys

import pytest

from flipout_lab import cli


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
