"""A results page in Markdown: a figure, which method to use, the claims of the paper, then everything else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ..reports import report_tables
from ..reports.channels import PART as CHANNELS
from ..reports.channels import channels_table, networks_in_channels
from ..reports.charts import accuracy_chart
from ..reports.equal_time import PART as EQUAL_TIME
from ..reports.equal_time import equal_time_table, networks_at_equal_time, pruned_shares, time_chart
from ..reports.labels import (
    PART_TITLES,
    SCHEDULES,
    by_network,
    counted,
    dense_references,
    label_runs,
    network_key,
    percent,
)
from ..reports.lead import choice_table, lead_figure, trials_table
from ..reports.matplotlib_figures import draw_figure
from ..reports.one_shot import PART as ONE_SHOT
from ..reports.one_shot import complete, minus_magnitude_table, one_shot_networks
from ..reports.recommendation import recommendation_table
from ..reports.records import Record, Records, pooled, versions_of
from ..reports.report_writer import UniqueNames
from ..reports.seed_statistics import dense_cell, seeds_line
from ..tables import Table
from .paper_claims import CLAIMS, Finding, Verdict, claims_table

REMARKS = {
    "corrections": (
        "The paper has four errors in its equations ([method.md](method.md)). 1: the noise is relative to the weights. "
        "2: the saliency divides by `flips`, so that a weight that never flipped is never pruned (the saliency as "
        "printed). 3: the absolute value is missing, which matters for odd p. 4: `(1 - r)^m` is the density, not the "
        "sparsity, which needs no run to show."
    ),
    "others": "Hoyer-Square and lottery tickets train for longer: fine-tuning, and rounds of training.",
    "smoke test": (
        "This shows that the whole path works on photographs: an image folder, training, pruning, a report. It trains "
        "far too briefly to learn anything, and says nothing about the methods."
    ),
}
PARTS_WITH_FIGURES = ("results", "ablation", "schedules", "our schedule", "second chances")
TRIALS = "second chances"  # the part that has a section of its own
# Parts of the grids that the paper shows as a table of another form.
PAPER_TABLES = {"table2": report_tables.best_value_table, "table3": report_tables.power_table}
NOT_RUN = "Not run yet."
HOW_TO_READ = """\
Accuracies are those of the last epoch, never of the best, in percent. ± is the sample standard deviation over seeds.
Differences are paired by seed: both methods start from the same weights and see the same batches. They have a 95 %
confidence interval (Student's t), and count only if it does not contain 0. Fewer than three seeds have no interval.
*Our schedule* has many small prunings in the first half of training and is the default. *The paper's schedule* halves
the network a few times until the end of training ([methods](methods.md)). Except for one-shot pruning, the sparsities
are those of the paper, powers of two: 98.44, 99.61 and 99.9 % leave 1/64, 1/256 and 1/1024 of the weights (after 30
epochs of LeNet-300-100: 1/1000).
In tables of accuracies, bold marks the highest mean, and ≈ those that are not significantly lower. In tables of
differences, bold marks those whose interval does not contain 0.
"""
EXPLAINED = (report_tables.BOLD, report_tables.PAIRED_NOTE)  # notes of tables that HOW_TO_READ makes superfluous
PROTOCOL = """\
The idea was explored in [short trainings](second-chances.md#what-was-tried) of 4 to 6 epochs, on the same data and at
two of the same sparsities. All settings of second chances were chosen by their *test* accuracy there, except the limit
and the balance of gradients, which were chosen on held-out training data. So the gains below may be slightly too large.
The settings were fixed before the runs below. These tables show everything that was run, on the test set, also what did
not help.
The difference is to permanent global magnitude, with the same seed. It is bold if its interval does not contain 0.
"""
EQUAL_TIME_PROTOCOL = """\
A method that makes training faster can train for longer. Every method gets the time that FlipOut's default takes for 15
epochs, on one core, with shrinking and sparse kernels where they pay. The number of epochs is chosen to fit. The time
is that of the processor, for training alone, without evaluation.
"""
CHANNELS_PROTOCOL = """\
Networks lose [whole channels](how-to/channels.md) while they train, until a half or a quarter of their multiply-adds is
left. The control is a dense network with fewer channels: pruning is worth its time where it ends above that.
"""
ONE_SHOT_PROTOCOL = """\
Networks were trained without pruning, and each was then pruned in every way, with 1,000 unlabelled training images
([one-shot pruning](one-shot.md)). Batch norms were estimated again, except where the table says so. Beside them are
networks of the same initial weights that were pruned while they trained, for the same number of epochs. What not all
seeds have finished is left out.
"""


def render_results_page(all_records: Sequence[Records], command: str, pictures: Path | None = None) -> str:
    """The whole page, the most important first. If a folder next to the page is given for pictures, draw them too."""
    records = pooled(all_records)
    names = UniqueNames()
    parts = [
        "# Results\n",
        HOW_TO_READ,
        f"Generated by `{command}`. All numbers come from these files.\n",
        *_recommendation(records),
        *_figure(records, pictures, names),
        "## Which method at which sparsity\n",
        _table_or_not_run(choice_table("", records.runs)),
        *_equal_time(records, pictures, names),
        *_channels(records),
        *_one_shot(records),
        "## The claims of the paper\n",
        _table_or_not_run(claims_table("", records), "\n[Every comparison](#the-claims-in-detail) is below.\n"),
        *_trials(records, pictures, names),
        *_claims_in_detail(records),
        *_networks(records, pictures, names),
        *_sweeps(all_records),
    ]
    return "\n".join(parts) + "\n"


def _recommendation(records: Records) -> Iterator[str]:
    if (table := recommendation_table("", records.runs)) is not None:
        yield "## In short\n"
        yield table.markdown()


def _figure(records: Records, pictures: Path | None, names: UniqueNames) -> Iterator[str]:
    yield "## Accuracy against sparsity on a convolutional network\n"
    lead = lead_figure(records.runs)
    if lead is None:
        yield "Not run yet: `flipout sweep small-resnet10`.\n"
        return
    yield f"{lead.network}, {seeds_line(lead.runs)}.{_dense_sentence(lead.runs)}\n"
    yield from _picture(lead.network, "lead", lead.runs, pictures, names)


def _equal_time(records: Records, pictures: Path | None, names: UniqueNames) -> Iterator[str]:
    """Accuracy against hours, if that was run."""
    networks = networks_at_equal_time(records.runs)
    if networks:
        yield f"## {PART_TITLES[EQUAL_TIME]}\n"
        yield EQUAL_TIME_PROTOCOL
    for network, runs in networks.items():
        yield f"### {network}\n"
        if (table := equal_time_table("", runs)) is not None:
            yield table.markdown()
        for sparsity in pruned_shares(runs) if pictures is not None else ():
            assert pictures is not None
            title = f"{network}, {percent(sparsity)} pruned"
            path = pictures / f"{names.reserve(title, 'hours')}.png"
            draw_figure(path, title, time_chart(runs, sparsity))
            yield f"![{title}: accuracy against hours]({pictures.name}/{path.name})\n"


def _channels(records: Records) -> Iterator[str]:
    """Whole channels beside dense networks of the same size, if that was run."""
    networks = networks_in_channels(records.runs)
    if networks:
        yield f"## {PART_TITLES[CHANNELS]}\n"
        yield CHANNELS_PROTOCOL
    for network, runs in networks.items():
        yield f"### {network}\n"
        yield channels_table("", runs).markdown()


def _one_shot(records: Records) -> Iterator[str]:
    """One-shot pruning of dense networks beside gradual pruning, if that was run."""
    networks = one_shot_networks(records.runs)
    if networks:
        yield f"## {PART_TITLES[ONE_SHOT]}\n"
        yield ONE_SHOT_PROTOCOL
    for network, runs in networks.items():
        shown = complete(runs)
        yield f"### {network}\n"
        yield f"{seeds_line(shown)}.\n"
        yield _unexplained(report_tables.accuracy_table("", shown)).markdown()
        yield minus_magnitude_table("", shown).markdown()
        if (dead := report_tables.dead_table("", shown)) is not None:
            yield dead.markdown()


def _dense_sentence(runs: Sequence[Record]) -> str:
    dense = dense_cell(runs)
    if dense is None or not dense.values:
        return ""
    return f" The dense network has {dense} ({counted(dense.seeds, 'seed')})."


def _picture(
    network: str, part: str, runs: Sequence[Record], pictures: Path | None, names: UniqueNames
) -> Iterator[str]:
    if pictures is not None and any(run.accuracy is not None and run.is_pruned for run in runs):
        path = pictures / f"{names.reserve(network, part)}.png"
        draw_figure(path, network, accuracy_chart(runs))
        yield f"![{network}: {PART_TITLES.get(part, 'accuracy against sparsity')}]({pictures.name}/{path.name})\n"


def _table_or_not_run(table: Table | None, remark: str = "") -> str:
    return f"{NOT_RUN}\n" if table is None else table.markdown() + remark


def _trials(records: Records, pictures: Path | None, names: UniqueNames) -> Iterator[str]:
    yield "## Second chances: what was tried\n"
    yield PROTOCOL
    networks = by_network(records.in_part(TRIALS))
    if not networks:
        yield "Not run yet: `flipout sweep second-chances-lenet-300-100 small-resnet10`.\n"
    for network, runs in networks.items():
        shown = [*runs, *dense_references(records.runs, runs)]
        yield f"### {network}\n"
        yield f"{seeds_line(runs)}.{_dense_sentence(shown)}\n"
        yield trials_table("", _with_references(records, runs)).markdown()
        yield from _picture(network, TRIALS, shown, pictures, names)
        if (dead := report_tables.dead_table("", runs)) is not None:
            yield dead.markdown()


def _with_references(records: Records, runs: Sequence[Record]) -> list[Record]:
    """The runs, and global magnitude of the same network under the schedules of these runs, for the differences."""
    network, schedules = network_key(runs[0].settings), {run.settings.option("schedule") for run in runs}
    sparsities = {run.settings.sparsity for run in runs}
    others = (run for run in records.runs if report_tables.is_reference(run) and run not in runs)
    wanted = (
        run
        for run in others
        if run.settings.option("schedule") in schedules
        and run.settings.sparsity in sparsities
        and network_key(run.settings) == network
    )
    return [*runs, *wanted]


def _claims_in_detail(records: Records) -> Iterator[str]:
    yield "## The claims in detail\n"
    for claim in CLAIMS:
        findings = claim.findings(records)
        yield f"### {claim.text}\n"
        yield " ".join(filter(None, (_summarize(findings), claim.remark))) + "\n"
        for finding in findings:
            yield f"- {finding.network}: **{finding.verdict}**. {finding.numbers}"
        yield ""


def _summarize(findings: Sequence[Finding]) -> str:
    if not findings:
        return NOT_RUN
    counts = {verdict: sum(finding.verdict == verdict for finding in findings) for verdict in Verdict}
    listed = ", ".join(f"{verdict} ({count})" for verdict, count in counts.items() if count)
    return f"{counted(len(findings), 'comparison')}: {listed}."


def _networks(records: Records, pictures: Path | None, names: UniqueNames) -> Iterator[str]:
    """All tables of every network, part by part."""
    for network, of_network in by_network(records.runs).items():
        parts = dict.fromkeys(
            part for run in of_network for part in run.parts if part not in (TRIALS, EQUAL_TIME, CHANNELS, ONE_SHOT)
        )
        if not any(run.result is not None or run.failure for run in of_network) or not parts:
            continue
        yield f"## {network}\n"
        for part in parts:
            planned = [run for run in of_network if part in run.parts]
            runs = _with_results(planned)
            if not runs:
                continue
            runs = _with_references(records, runs) if part == "others" else runs
            shown = [*runs, *_with_results(dense_references(of_network, runs))]
            yield f"### {PART_TITLES.get(part, part)}\n"
            if part in REMARKS:
                yield REMARKS[part] + "\n"
            if open_runs := sum(run.result is None and not run.failure for run in planned):
                left_out = "Methods and sparsities without a result are left out."
                yield f"{open_runs} of {len(planned)} runs are not finished. {left_out}\n"
            yield from _part(network, part, shown)
            if part in PARTS_WITH_FIGURES:
                yield from _picture(network, part, shown, pictures, names)


def _with_results(runs: Sequence[Record]) -> list[Record]:
    """The runs of methods that have a result, or a failure, at the sparsities that have one."""
    labels = label_runs(runs)
    ended = [run for run in runs if run.result is not None or run.failure]
    methods, sparsities = {labels[run.name] for run in ended}, {run.settings.sparsity for run in ended}
    return [run for run in runs if labels[run.name] in methods and run.settings.sparsity in sparsities]


def _sweeps(all_records: Sequence[Records]) -> Iterator[str]:
    yield "## The runs behind this page\n"
    rows = []
    for records in all_records:
        seconds = [run.result["seconds"] for run in records.runs if run.result is not None]
        failed = sum(bool(run.failure) for run in records.runs)
        numbers = (len(records.runs), len(seconds), failed, len(records.runs) - len(seconds) - failed)
        rows.append([records.title, *map(str, numbers), f"{sum(seconds) / 3600:.1f}"])
    yield Table("", ("sweep", "runs", "finished", "failed", "not run yet", "hours"), rows).markdown()
    yield f"Versions: {versions_of(run for records in all_records for run in records.runs)}."
    yield "Rounding differs between kinds of CPUs, so that the same seed can end elsewhere on another machine."


def _part(network: str, part: str, runs: Sequence[Record]) -> Iterator[str]:
    schedules = sorted({str(kind) for run in runs if (kind := run.settings.option("schedule")) is not None})
    schedule = f", {SCHEDULES.get(schedules[0], schedules[0])}" if len(schedules) == 1 else ""
    yield f"{seeds_line(runs)}{schedule}.\n"
    tables = [
        report_tables.accuracy_table("", runs),
        report_tables.paired_table("", runs),
        report_tables.shots_table("", runs),
        report_tables.dead_table("", runs),
    ]
    if part in PAPER_TABLES:
        tables.insert(0, PAPER_TABLES[part]("", {network.partition(" on ")[0]: runs}))
    for table in tables:
        if table is not None:
            yield _unexplained(table).markdown()


def _unexplained(table: Table) -> Table:
    """A table without the notes that the page has at its top."""
    return replace(table, notes=tuple(note for note in table.notes if note not in EXPLAINED))
