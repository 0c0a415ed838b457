"""The shape of an image, and the scaling of the number of channels."""

from __future__ import annotations

Shape = tuple[int, int, int]
"""Channels, height and width of an image."""


def scaled(channels: int, width: float) -> int:
    """The number of channels times the width factor, rounded, at least one."""
    return max(1, round(channels * width))
