"""What may go wrong on the way to a smaller network, and is told in its notes."""

from __future__ import annotations


class UntraceableError(Exception):
    """The network as a whole cannot be followed; the message says why."""
