"""Tables as plain text."""

from __future__ import annotations

from collections.abc import Container, Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: Container[int] = (0,)) -> str:
    """Format columns: those of texts aligned left, the others right; rules under the head and above a total."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = enumerate(zip(row, widths, strict=True))
        return "  ".join(cell.ljust(width) if i in texts else cell.rjust(width) for i, (cell, width) in cells).rstrip()

    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    lines = [line(head), rule]
    for row in rows:
        lines += [rule, line(row)] if row[0] == "total" else [line(row)]
    return "\n".join(lines)
