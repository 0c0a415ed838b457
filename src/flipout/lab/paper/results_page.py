"""A page of results in Markdown: what was run, the tables, and the paper's claims with a verdict on each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..reports.figures import draw_accuracy
from ..reports.labels import by_network, counted, references
from ..reports.page import slug
from ..reports.records import Record, Records, versions_of
from ..reports.report_tables import accuracy_table, best_value_table, dead_table, power_table, shots_table
from ..reports.report_writer import PART_TITLES
from ..reports.seed_statistics import dense, seeds_line
from ..reports.series import accuracy_curves
from .claims import CLAIMS, Claim

REMARKS = {
    "corrections": (
        "Four places of the paper cannot be taken at its word ([method.md](method.md)). 1: noise relative to the "
        "weights. 2: dividing by `flips`, which spares what never flipped (the saliency as printed). 3: no absolute "
        "value, which shows at odd p. 4: `(1 - r)^m` is the density, not the sparsity, which takes no run to see."
    ),
}
DRAWN = ("results", "ablation", "schedules")
# A part of the grids that has a table of its own in the paper, with what makes it.
PAPER_TABLES = {"table2": best_value_table, "table3": power_table}


def results_page(all_records: Sequence[Records], command: str, pictures: Path | None = None) -> str:
    """The whole page; with a folder beside it for pictures, these too."""
    parts = [*_head(all_records, command), *_claims(all_records), *_tables(all_records, pictures)]
    return "\n".join(parts) + "\n"


def _head(all_records: Sequence[Records], command: str) -> Iterator[str]:
    yield "# Results\n"
    yield f"Made by `{command}` from the results kept beside it; no number here was typed.\n"
    yield (
        "Accuracies are those of the last epoch, never the best, in percent; ± is the sample standard deviation over "
        "seeds.\nA difference counts if it is larger than the spread of a difference, the root of the sum of the two "
        "variances.\n"
    )
    yield "| what was run | runs | finished | failed | missing | hours |\n|---|---:|---:|---:|---:|---:|"
    for records in all_records:
        finished = [run for run in records.runs if run.result is not None]
        failed = sum(bool(run.failure) for run in records.runs)
        hours = sum(run.result["seconds"] for run in finished if run.result is not None) / 3600
        missing = len(records.runs) - len(finished) - failed
        yield f"| {records.title} | {len(records.runs)} | {len(finished)} | {failed} | {missing} | {hours:.1f} |"
    yield f"\nVersions: {versions_of(run for records in all_records for run in records.runs)}.\n"


def _claims(all_records: Sequence[Records]) -> Iterator[str]:
    yield "## The paper's claims\n"
    for claim in CLAIMS:
        yield f"### {claim.text}\n"
        yield " ".join(filter(None, (_verdict(claim, all_records), claim.remark))) + "\n"
        for finding in claim.findings(all_records):
            yield f"- {finding.network}: **{finding.verdict}**. {finding.numbers}"
        yield ""


def _verdict(claim: Claim, all_records: Sequence[Records]) -> str:
    found = claim.findings(all_records)
    if not found:
        return "Not measured."
    counts = {kind: sum(one.verdict == kind for one in found) for kind in ("holds", "level", "does not hold", "open")}
    told = ", ".join(f"{kind} in {count}" for kind, count in counts.items() if count)
    return f"Of {counted(len(found), 'comparison')}: {told}."


def _tables(all_records: Sequence[Records], pictures: Path | None) -> Iterator[str]:
    for records in all_records:
        yield f"## {records.title}\n"
        for part in records.parts:
            yield f"### {PART_TITLES.get(part, part)}\n"
            if part in REMARKS:
                yield REMARKS[part] + "\n"
            for network, runs in by_network(records.of(part)).items():
                shown = _with_dense(runs, records)
                yield from _part(network, part, shown)
                if pictures is not None and part in DRAWN:
                    path = pictures / f"{slug(network)}-{slug(part)}.png"
                    draw_accuracy(path, network, accuracy_curves(shown), dense(shown))
                    yield f"![{network}: {PART_TITLES[part]}]({pictures.name}/{path.name})\n"


def _with_dense(runs: Sequence[Record], records: Records) -> list[Record]:
    return [*runs, *references(records.runs, runs)]


def _part(network: str, part: str, runs: Sequence[Record]) -> Iterator[str]:
    schedules = sorted({str(kind) for run in runs if (kind := run.settings.option("schedule")) is not None})
    told = f", schedule: {schedules[0]}" if len(schedules) == 1 else ""
    yield f"{network}, {seeds_line(runs)}{told}.\n"
    if part in PAPER_TABLES:
        yield PAPER_TABLES[part]("", {network.partition(" on ")[0]: runs}).markdown()
    yield accuracy_table("", runs).markdown()
    for table in (shots_table("", runs), dead_table("", runs)):
        if table is not None:
            yield table.markdown()
