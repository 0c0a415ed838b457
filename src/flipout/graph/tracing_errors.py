"""The error for networks that cannot be traced or compacted, and a helper that shortens error messages."""

from __future__ import annotations


class UnsupportedNetworkError(Exception):
    """The network as a whole cannot be traced or compacted; the message says why."""


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or the name of its class if the message is empty."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
