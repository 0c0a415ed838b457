"""Tables as plain text."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format columns: the first aligned left, the others right; rules under the head and above a total."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        return "  ".join((first.strip().ljust(widths[0]), *others)).rstrip()

    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    lines = [line(head), rule]
    for row in rows:
        lines += [rule, line(row)] if row[0] == "total" else [line(row)]
    return "\n".join(lines)
