"""Sizes of files as text."""

from __future__ import annotations

import pytest

from flipout.export.file_sizes import format_bytes


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (44_745_400, "44.7 MB"), (5 * 10**12, "5,000.0 GB")],
)
def test_sizes_as_text(size: int, text: str) -> None:
    assert format_bytes(size) == text
