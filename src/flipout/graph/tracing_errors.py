"""What may go wrong on the way to a smaller network, and how it is told in a line."""

from __future__ import annotations


class UntraceableError(Exception):
    """The network as a whole cannot be followed; the message says why."""


def first_line(error: Exception) -> str:
    """What an error says, without its details; its kind if it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
