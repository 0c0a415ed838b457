"""`make bench`: every figure is a ratio, taken in this one run; results in benchmarks/results.json."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from . import loop

HERE = Path(__file__).parent


def main() -> None:
    console = Console()
    with console.status("the lab's loop against a bare one"):
        figure, spreads = loop.measure()
    results = {"loop_over_bare": figure}
    (HERE / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    (HERE / "spreads.json").write_text(json.dumps({"loop_over_bare": spreads}, indent=2) + "\n")
    table = Table("figure", "network")
    table.add_column("ratio", justify="right")
    for name, numbers in results.items():
        for network, number in numbers.items():
            table.add_row(name, network, f"{number:.2f}")
    console.print(table)


if __name__ == "__main__":
    main()
