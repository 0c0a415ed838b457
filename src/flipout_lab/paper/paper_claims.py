"""The claims of the paper, one by one, checked against results.

Differences are paired by seed. A difference counts only if its 95 % confidence interval does not contain 0. A claim
about the best of several holds only if it is shown against each of them, and all of them are finished.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from ..data import DATA
from ..reports.labels import HELD_OUT, by_network, counted, percent
from ..reports.records import Record, Records, grouped
from ..reports.seed_statistics import (
    FEWEST,
    Cell,
    PairedDifference,
    beats,
    by_option,
    cells,
    has_larger_spread,
    shot_shares,
    sparsities,
)
from ..tables import Table, bold_if

EXTREME = 0.995  # the paper's "99.61 % and beyond"
FEWEST_VALUES = 5  # of an option, to call one of them close to the best
FLIPOUT, MAGNITUDE = (  # with noise and without
    ("FlipOut (paper)", "FlipOut (paper), no noise"),
    ("Global magnitude, noise 1", "Global magnitude"),
)


class Verdict(StrEnum):
    """What one comparison says about a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    MIXED = "holds in part"
    LEVEL = "not significant"  # the interval contains the value that decides
    OPEN = "cannot be said here"  # too few seeds or values
    UNTESTED = "not run yet"


Comparisons = Iterator[tuple[Verdict, str]]
"""Verdicts with the numbers they are based on."""


@dataclass(frozen=True)
class Finding:
    """The verdict of one comparison on one network, with its numbers."""

    network: str
    verdict: Verdict
    numbers: str


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, the part of a grid that tests it, and the function that compares the runs of that part."""

    text: str
    part: str
    compare: Callable[[Sequence[Record]], Comparisons]
    remark: str = ""

    def findings(self, records: Records) -> list[Finding]:
        findings = []
        for network, runs in by_network(records.in_part(self.part)).items():
            findings += [Finding(network, verdict, numbers) for verdict, numbers in self.compare(runs)]
        return findings


def overall(findings: Sequence[Finding]) -> Verdict:
    """The verdict of all comparisons together. A claim holds if each of them holds."""
    verdicts = {finding.verdict for finding in findings}
    if not verdicts:
        return Verdict.UNTESTED
    if verdicts == {Verdict.HOLDS}:
        return Verdict.HOLDS
    if verdicts & {Verdict.HOLDS, Verdict.MIXED}:
        return Verdict.MIXED
    return Verdict.FAILS if Verdict.FAILS in verdicts else Verdict.OPEN


def _compare_cells(name: str, cell: Cell, other_name: str, other: Cell) -> tuple[Verdict, str]:
    """The verdict on the claim that the first cell is better than the second."""
    numbers = f"{name} {cell}, {other_name} {other}"
    better, worse = beats(cell, other), beats(other, cell)
    if better is None or worse is None:
        return Verdict.OPEN, f"{numbers} (too few finished seeds)"
    verdict = Verdict.HOLDS if better else Verdict.FAILS if worse else Verdict.LEVEL
    return verdict, f"{numbers}: {cell.minus(other)}"


def _compare_gap(gap: PairedDifference, allowed: float) -> Verdict:
    """The verdict on the claim that a difference is at most `allowed`, from its confidence interval."""
    if gap.interval is None:
        return Verdict.OPEN
    low, high = gap.interval
    return Verdict.HOLDS if high <= allowed else Verdict.FAILS if low > allowed else Verdict.LEVEL


def _all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict on a claim that needs every one of these: one that fails decides, and so does a missing one."""
    found = set(verdicts)
    order = (Verdict.FAILS, Verdict.OPEN, Verdict.LEVEL)
    return next((verdict for verdict in order if verdict in found), Verdict.HOLDS)


def _columns(runs: Sequence[Record]) -> Iterator[tuple[float, dict[str, Cell]]]:
    """For each sparsity the cells of all methods that are planned."""
    rows = cells(runs)
    for sparsity in sparsities(rows):
        yield sparsity, {label: row[sparsity] for label, row in rows.items() if sparsity in row}


def _against_all(
    cell: Cell, others: Mapping[str, Cell], compare: Callable[[Cell, Cell], Verdict]
) -> tuple[Verdict, str, Cell]:
    """The verdict on a comparison with each of several methods; a description of the best of them, and its cell."""
    measured = {label: other for label, other in others.items() if other.values}
    verdicts = [compare(cell, other) for other in measured.values()]
    if any(each.missing for each in (cell, *others.values())):
        verdicts.append(Verdict.OPEN)
    best = max(measured, key=lambda label: measured[label].mean)
    finished = "" if len(measured) == len(others) else f", {len(measured)} of them measured"
    return _all_of(verdicts), f"the best of {counted(len(others), 'other')}{finished} ({best})", measured[best]


def _is_better(cell: Cell, other: Cell) -> Verdict:
    return _compare_cells("", cell, "", other)[0]


def _is_within(allowed: float) -> Callable[[Cell, Cell], Verdict]:
    return lambda cell, other: Verdict.OPEN if cell.failed else _compare_gap(other.minus(cell), allowed)


def _against_others(runs: Sequence[Record], *, extreme: bool) -> Comparisons:
    """Check that FlipOut is the best method beyond 99.61 % (`extreme`), or within a point of it below."""
    for sparsity, others in _columns(runs):
        flipout = others.pop(FLIPOUT[0], Cell(()))
        if (sparsity > EXTREME) == extreme and flipout.values and any(cell.values for cell in others.values()):
            verdict, name, best = _against_all(flipout, others, _is_better if extreme else _is_within(1.0))
            gap = f"{flipout.minus(best)}" if extreme else f"behind by {best.minus(flipout)}"
            yield verdict, f"{percent(sparsity)}: FlipOut {flipout}, {name} {best}: {gap}"


def _is_near_best(option: str, default: float, allowed: float) -> Callable[[Sequence[Record]], Comparisons]:
    """Check that the default of an option is within `allowed` points of every other value that was tried."""

    def compare(runs: Sequence[Record]) -> Comparisons:
        name, scan = "λ" if option == "noise" else option, by_option(runs, option)
        for sparsity in sorted({s for (_, s), cell in scan.items() if cell.values}):
            column = {value: cell for (value, s), cell in scan.items() if s == sparsity}
            own = column.pop(default, Cell(()))
            tried = len([cell for cell in (own, *column.values()) if cell.values])
            if not own.values or tried < FEWEST_VALUES:
                yield Verdict.OPEN, f"{percent(sparsity)}: only {counted(tried, 'value')} tried"
                continue
            others = {f"{name} = {value:g}": cell for value, cell in column.items()}
            verdict, best_name, best = _against_all(own, others, _is_within(allowed))
            numbers = f"{name} = {default:g}: {own}; {best_name}: {best}; behind by {best.minus(own)}"
            yield verdict, f"{percent(sparsity)}: {numbers}"

    return compare


def _large_powers_are_better(runs: Sequence[Record]) -> Comparisons:
    scan = by_option(runs, "p")
    for sparsity in sorted({s for (_, s), cell in scan.items() if cell.values}):
        large, small = ({p: scan.get((p, sparsity), Cell(())) for p in group} for group in ((1, 2, 4), (0, 0.5)))
        if any(cell.missing or not cell.values for cell in (*large.values(), *small.values())):
            yield Verdict.OPEN, f"{percent(sparsity)}: not all of p = 0, 1/2, 1, 2 and 4 are finished"
            continue
        worst, best = (min(large, key=lambda p: large[p].mean), max(small, key=lambda p: small[p].mean))
        verdict = _all_of(_is_better(one, other) for one in large.values() for other in small.values())
        names = f"the worst of p = 1, 2 and 4 ({worst:g})", f"the best of p = 0 and 1/2 ({best:g})"
        _, numbers = _compare_cells(names[0], large[worst], names[1], small[best])
        yield verdict, f"{percent(sparsity)}: {numbers}"


def _pairs(runs: Sequence[Record], label: str, other: str) -> Iterator[tuple[float, Cell, Cell]]:
    """For each sparsity the cells of two methods, if both have a result."""
    for sparsity, column in _columns(runs):
        if label in column and other in column and column[label].values and column[other].values:
            yield sparsity, column[label], column[other]


def _effect_of_noise(runs: Sequence[Record], *, labels: tuple[str, str], extreme: bool) -> Comparisons:
    """Check that noise raises the accuracy above 98.44 % (`extreme`), or lowers it up to there."""
    for sparsity, noisy, quiet in _pairs(runs, *labels):
        if (sparsity > EXTREME) == extreme:
            pair = [("with noise", noisy), ("without noise", quiet)]
            one, other = pair if extreme else pair[::-1]
            verdict, numbers = _compare_cells(*one, *other)
            yield verdict, f"{percent(sparsity)}: {numbers}"


def _beats_noisy_magnitude(runs: Sequence[Record]) -> Comparisons:
    for sparsity, flipout, noisy in list(_pairs(runs, FLIPOUT[0], MAGNITUDE[0]))[-1:]:
        verdict, numbers = _compare_cells(FLIPOUT[0], flipout, "magnitude with noise", noisy)
        yield verdict, f"{percent(sparsity)}: {numbers}"


def _has_smaller_spread(runs: Sequence[Record]) -> Comparisons:
    for sparsity, flipout, noisy in list(_pairs(runs, FLIPOUT[0], MAGNITUDE[0]))[-1:]:
        if flipout.spread is not None and noisy.spread is not None:
            smaller, larger = has_larger_spread(noisy, flipout), has_larger_spread(flipout, noisy)
            verdict = Verdict.HOLDS if smaller else Verdict.FAILS if larger else Verdict.LEVEL
            numbers = f"FlipOut ± {flipout.spread:.2f}, magnitude with noise ± {noisy.spread:.2f}"
            yield verdict, f"{percent(sparsity)}: {numbers}, {flipout.seeds} seeds"


def _fine_tuning_gains_little(runs: Sequence[Record]) -> Comparisons:
    gains: dict[int, list[float]] = {}
    for run in runs:
        before = run.before_fine_tuning
        if (
            run.settings.sparsity is None
            and run.accuracy is not None
            and (run.sparsity or 0) > 0.5
            and before is not None
        ):
            gains.setdefault(run.settings.seed, []).append(100 * (run.accuracy - before))
    if gains:
        # The runs of one seed are not independent: they differ in lambda alone.
        gain = PairedDifference(tuple(statistics.fmean(values) for values in gains.values()))
        every = [value for values in gains.values() for value in values]
        numbers = (
            f"{counted(len(every), 'run')} with more than half of the weights pruned, {counted(len(gains), 'seed')}: "
            f"gained {gain} points on average, {max(every):.2f} at most"
        )
        yield _compare_gap(gain, 0.5), numbers


def _snip(runs: Sequence[Record], *, dead: bool) -> Comparisons:
    """Check that SNIP has less than twice chance accuracy at extreme sparsities, or that a layer is dead then."""
    snip = [run for run in runs if run.settings.method == "snip" and run.settings.data in DATA]
    for sparsity, group in sorted(grouped(snip, lambda run: run.settings.sparsity).items()):
        accuracies = [(run, run.accuracy) for run in group if run.accuracy is not None]
        collapsed = [run for run, accuracy in accuracies if accuracy < 2 / DATA[run.settings.data].classes]
        if sparsity > EXTREME and dead and collapsed:
            died = [run for run in collapsed if run.result is not None and run.result["dead_layers"]]
            numbers = f"a dead layer in {len(died)} of {counted(len(collapsed), 'collapsed run')}"
            yield _share_of_runs(len(died), len(collapsed)), f"{percent(sparsity)}: {numbers}"
        elif sparsity > EXTREME and accuracies and not dead:
            numbers = f"{len(collapsed)} of {counted(len(accuracies), 'run')} near chance"
            yield _share_of_runs(len(collapsed), len(accuracies)), f"{percent(sparsity)}: {numbers}"


def _share_of_runs(found: int, of: int) -> Verdict:
    """The verdict on a claim about every run, from the runs that show it."""
    if of < FEWEST:
        return Verdict.OPEN
    return Verdict.HOLDS if found == of else Verdict.MIXED if found else Verdict.FAILS


def _noise_adds_over_shoots(runs: Sequence[Record]) -> Comparisons:
    shares = shot_shares([run for run in runs if run.settings.method == "flipout-paper"])
    noisy, quiet = (shares.get(label, {}) for label in FLIPOUT)
    for sparsity in sorted(noisy.keys() & quiet.keys()):
        verdict, numbers = _compare_cells("with noise", noisy[sparsity], "without noise", quiet[sparsity])
        yield verdict, f"{percent(sparsity)}: over-shoots in percent of all shots, {numbers}"


IS_BEST, IS_NEAR = partial(_against_others, extreme=True), partial(_against_others, extreme=False)
NOISE_HELPS, NOISE_HURTS = partial(_effect_of_noise, extreme=True), partial(_effect_of_noise, extreme=False)
SNIP_REMARK = (
    "The code of the paper has errors that explain its chance accuracy. The SNIP here scores the initial network."
)
CLAIMS = tuple(
    Claim(*claim)
    for claim in (
        ("FlipOut is the best method at 99.61 % and beyond (stated for ResNet18 and VGG19)", "results", IS_BEST),
        ("Below 99.61 % FlipOut is within one point of the best method", "results", IS_NEAR),
        ("λ = 1 is close to the best value (within 2 points)", "table2", _is_near_best("noise", 1.0, 2.0)),
        ("p = 2 is the best value or close to it (within 1.1 points)", "table3", _is_near_best("p", 2.0, 1.1)),
        ("p = 1, 2 and 4 are better than p = 0 and 1/2", "table3", _large_powers_are_better),
        ("Noise makes FlipOut worse up to 98.44 %", "ablation", partial(NOISE_HURTS, labels=FLIPOUT)),
        ("Noise makes FlipOut better above 98.44 %", "ablation", partial(NOISE_HELPS, labels=FLIPOUT)),
        ("Noise makes global magnitude worse up to 98.44 %", "ablation", partial(NOISE_HURTS, labels=MAGNITUDE)),
        ("Noise makes global magnitude better above 98.44 %", "ablation", partial(NOISE_HELPS, labels=MAGNITUDE)),
        (
            "Noise alone does not explain the gain: FlipOut beats magnitude with noise at the highest sparsity",
            "ablation",
            _beats_noisy_magnitude,
        ),
        (
            "At the highest sparsity FlipOut has a smaller spread than magnitude with noise",
            "ablation",
            _has_smaller_spread,
        ),
        ("Fine-tuning Hoyer-Square gains less than half a point", "results", _fine_tuning_gains_little),
        ("SNIP collapses at 99.61 % and beyond", "results", partial(_snip, dead=False)),
        ("SNIP collapses because a layer dies", "results", partial(_snip, dead=True), SNIP_REMARK),
        ("Noise turns under-shoots into over-shoots", "aim", _noise_adds_over_shoots),
    )
)


NOTE = (
    "The paper makes these claims for ResNet18, VGG19 and DenseNet121, trained for 350 epochs on GPUs. A verdict is "
    "about the network above it alone. A claim holds if every comparison shows it, and holds in part if some do. It "
    "does not hold if a comparison shows the opposite and none shows it. In brackets: how many comparisons show the "
    "claim. Differences are paired by seed. They count if their 95 % interval does not contain 0, or, for "
    "'within x points', lies on one side of x. Spreads are compared by an F-test. Claims about SNIP count runs. "
    "Nothing is said from fewer than three seeds, or about the best of several methods before all of them are finished."
)
DECIDED = (Verdict.HOLDS, Verdict.FAILS, Verdict.MIXED)


def claims_table(title: str, records: Records) -> Table | None:
    """The verdict on every claim that was tested; None if none was."""
    findings = {claim.text: found for claim in CLAIMS if (found := claim.findings(records))}
    # Tables 2 and 3 of the paper are measured on held-out data of the same network.
    networks = list(dict.fromkeys(each.network.removesuffix(HELD_OUT) for found in findings.values() for each in found))
    if not networks:
        return None
    rows = []
    for text, found in findings.items():
        by_network = [[each for each in found if each.network.removesuffix(HELD_OUT) == name] for name in networks]
        groups = (found, *by_network) if len(networks) > 1 else (found,)
        rows.append([text, *(bold_if(summary(group), overall(group) in DECIDED) for group in groups)])
    heading = ("claim of the paper", *(("all networks",) if len(networks) > 1 else ()), *networks)
    untested = len(CLAIMS) - len(findings)
    notes = (NOTE,) if not untested else (NOTE, f"These runs do not test the other {counted(untested, 'claim')}.")
    return Table(title, heading, rows, notes, texts=range(len(heading)))


def summary(findings: Sequence[Finding]) -> str:
    """The verdict of all comparisons together, and how many of them show the claim."""
    verdict, holds = overall(findings), sum(each.verdict == Verdict.HOLDS for each in findings)
    in_part = sum(each.verdict == Verdict.MIXED for each in findings)
    count = f"{holds} of {len(findings)}" + (f", {in_part} in part" if in_part else "")
    return f"{verdict} ({count})" if len(findings) > 1 else str(verdict)
