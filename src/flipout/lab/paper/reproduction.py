"""The paper's tables and figures, made again at a scale of one's choice."""

from __future__ import annotations

from pathlib import Path

from flipout import Geometric

from ..errors import unknown
from ..reports.figures import draw_accuracy
from ..reports.labels import MODEL_NAMES, by_network, percent, references
from ..reports.page import slug
from ..reports.records import Records
from ..reports.report_tables import Entry, Table, accuracy_table, best_value_table, power_table
from ..reports.seed_statistics import dense
from ..reports.series import accuracy_curves
from ..runs.settings import Settings
from ..sweeps.grid import read_grid, shipped_grids

# What can be made again, and the part of the grids that it is made of.
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
    """The grids of a scale that have a part."""
    names = [name for name in shipped_grids() if name == scale or name.startswith(f"{scale}-")]
    return [name for name in names if not part or part in read_grid(name).parts]


def schedule_table(scale: str) -> Table:
    """Table 1: compression, sparsity, and epochs between prunings, from the schedule itself."""
    epochs = sorted({(run.epochs, run.model) for name in grids_of(scale, "results") for run in _settings(name)})
    lengths = {length: [MODEL_NAMES.get(model, model) for e, model in epochs if e == length] for length, _ in epochs}
    rows = []
    for halvings in (2, 4, 6, 8, 10):
        sparsity = 1 - 2.0**-halvings
        between = []
        for length in lengths:
            steps = 1000 * length  # a thousand steps an epoch: where epochs are few, prunings fall between their ends
            try:
                plan = Geometric.paper(sparsity, steps, steps_per_epoch=1000).plan(10**6)
            except ValueError:
                plan = Geometric.paper(sparsity, steps).plan(10**6)
            between.append(Entry(f"{plan[0].step / 1000:.4g}"))
        rows.append((Entry(f"2^{halvings} = {2**halvings}"), Entry(percent(sparsity)), *between))
    heading = [f"epochs before pruning, of {length} ({', '.join(models)})" for length, models in lengths.items()]
    return Table("Table 1: half of the weights go at each pruning", ("compression", "sparsity", *heading), tuple(rows))


def _settings(grid: str) -> list[Settings]:
    return [run.settings for run in read_grid(grid).only(["results"]).runs()]


def made_again(item: str, scale: str, records: Records, folder: Path) -> tuple[list[Table], list[Path]]:
    """The tables of an item, and the files that were written."""
    networks = by_network(records.of(ITEMS[item]))
    short = {title: title.partition(",")[0] for title in networks}
    unique = len(set(short.values())) == len(short)
    named = {short[title] if unique else title: runs for title, runs in networks.items()}
    folder.mkdir(parents=True, exist_ok=True)
    tables, written = [], []
    if item == "table1":
        tables.append(schedule_table(scale))
    elif item == "table2":
        tables.append(best_value_table("Table 2: the best λ, and λ = 1", named))
    elif item == "table3":
        tables.append(power_table("Table 3: powers of the magnitude", named))
    else:
        for title, runs in networks.items():
            shown = [*runs, *references(records.runs, runs)]
            tables.append(accuracy_table(title, shown))
            path = folder / f"{item}-{slug(title)}"
            draw_accuracy(path, title, accuracy_curves(shown), dense(shown))
            written += [path.with_name(path.name + suffix) for suffix in (".png", ".pdf")]
    for table in tables:
        written += table.write(folder / f"{item}-{slug(table.title)}")
    return tables, written
