"""Reproduce the tables and figures of the paper at one of three scales."""

from __future__ import annotations

from pathlib import Path

from ..errors import unknown
from ..models.model_catalogue import model_title
from ..reports.charts import accuracy_chart
from ..reports.labels import by_network, dense_references, percent
from ..reports.matplotlib_figures import draw_figure
from ..reports.records import Records
from ..reports.report_tables import accuracy_table, best_value_table, power_table
from ..reports.report_writer import UniqueNames
from ..runs.pruning import paper_schedule
from ..sweeps.grid import read_grid, shipped_grids
from ..tables import Table

# The tables and figures, and the part of the grids that each needs. Table 1 needs no runs.
ITEMS = {
    "table1": "",
    "table2": "table2",
    "table3": "table3",
    "figure-results": "results",
    "figure-ablation": "ablation",
}
SCALES = ("quick", "small", "paper")


def check_item(item: str, scale: str) -> None:
    if item not in ITEMS:
        raise unknown("table or figure", item, ITEMS)
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)


def grids_of(scale: str, part: str) -> list[str]:
    names = [name for name in shipped_grids() if name == scale or name.startswith(f"{scale}-")]
    return [name for name in names if not part or part in read_grid(name).parts]


def schedule_table(scale: str) -> Table:
    """Table 1: compression, sparsity, and epochs between prunings, computed from the schedule."""
    runs = [run.settings for name in grids_of(scale, "results") for run in read_grid(name).only(["results"]).runs()]
    epochs = sorted({(run.epochs, run.model) for run in runs})
    lengths = {length: [model_title(model) for e, model in epochs if e == length] for length, _ in epochs}
    rows = []
    for halvings in (2, 4, 6, 8, 10):
        sparsity = 1 - 2.0**-halvings
        plans = [paper_schedule(sparsity, 1000 * length, steps_per_epoch=1000).plan(10**6) for length in lengths]
        between = [f"{plan[0].step / 1000:.4g}" for plan in plans]
        rows.append([f"2^{halvings} = {2**halvings}", percent(sparsity), *between])
    heading = [f"epochs before pruning, of {length} ({', '.join(models)})" for length, models in lengths.items()]
    title = "Table 1: each pruning removes half of the weights"
    return Table(title, ("compression", "sparsity", *heading), rows)


def reproduce_item(item: str, scale: str, records: Records, folder: Path) -> tuple[list[Table], list[Path]]:
    """Write a table or figure of the paper to a folder. Return the tables, and the files that were written."""
    names, tables, written = UniqueNames(), list[Table](), list[Path]()
    networks = by_network(records.in_part(ITEMS[item]))
    folder.mkdir(parents=True, exist_ok=True)
    if item.startswith("figure"):  # one for each network, and the same numbers as a table
        for title, runs in networks.items():
            shown = [*runs, *dense_references(records.runs, runs)]
            tables.append(accuracy_table(title, shown))
            path = folder / names.reserve(item, title)
            draw_figure(path, title, accuracy_chart(shown))
            written += [path.with_name(path.name + suffix) for suffix in (".png", ".pdf")]
            written += tables[-1].write(path)
        return tables, written
    short = {title: title.partition(",")[0] for title in networks}
    unique = len(set(short.values())) == len(short)
    by_name = {short[title] if unique else title: runs for title, runs in networks.items()}
    if item == "table1":
        table = schedule_table(scale)
    elif item == "table2":
        table = best_value_table("Table 2: the best λ, and λ = 1", by_name)
    else:
        table = power_table("Table 3: powers of the magnitude", by_name)
    return [table], table.write(folder / names.reserve(item, table.title))
