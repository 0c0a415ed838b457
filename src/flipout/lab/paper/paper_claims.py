"""The claims of the paper, one by one, checked against results.

Differences are paired by seed. A difference counts only if its 95 % confidence interval does not contain 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ..data import DATA
from ..reports.confidence_intervals import PairedDifference
from ..reports.labels import by_network, counted, percent
from ..reports.records import Record, Records
from ..reports.seed_statistics import Cell, beats, by_option, cells, has_larger_spread, shot_shares, sparsities

EXTREME = 0.995  # the paper's "99.61 % and beyond"
FEWEST_VALUES = 5  # of an option, to call one of them close to the best


class Verdict(StrEnum):
    """What one comparison says about a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    MIXED = "holds in part"
    LEVEL = "not shown"  # the interval contains the value that decides
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


def _compare_gap(interval: tuple[float, float] | None, allowed: float) -> Verdict:
    """The verdict on the claim that a difference is at most `allowed`, from its confidence interval."""
    if interval is None:
        return Verdict.OPEN
    low, high = interval
    return Verdict.HOLDS if high <= allowed else Verdict.FAILS if low > allowed else Verdict.LEVEL


def _columns(runs: Sequence[Record]) -> Iterator[tuple[float, dict[str, Cell]]]:
    """For each sparsity the cells of all methods that have a result."""
    rows = cells(runs)
    for sparsity in sparsities(rows):
        column = {label: row[sparsity] for label, row in rows.items() if sparsity in row}
        yield sparsity, {label: cell for label, cell in column.items() if cell.values}


def _flipout_and_best_other(runs: Sequence[Record]) -> Iterator[tuple[float, Cell, str, Cell]]:
    """For each sparsity FlipOut, a description of the best other method, and that method's cell."""
    for sparsity, column in _columns(runs):
        flipout = column.pop("FlipOut (paper)", None)
        if flipout is not None and column:
            best = max(column, key=lambda label: column[label].mean)
            yield sparsity, flipout, f"the best of {counted(len(column), 'other method')} ({best})", column[best]


def _is_best(runs: Sequence[Record]) -> Comparisons:
    for sparsity, flipout, other_name, other in _flipout_and_best_other(runs):
        if sparsity > EXTREME:
            verdict, numbers = _compare_cells("FlipOut", flipout, other_name, other)
            yield verdict, f"{percent(sparsity)}: {numbers}"


def _is_within_a_point(runs: Sequence[Record]) -> Comparisons:
    for sparsity, flipout, other_name, other in _flipout_and_best_other(runs):
        if sparsity < EXTREME:
            gap = other.minus(flipout)
            verdict = Verdict.OPEN if flipout.failed else _compare_gap(gap.interval, 1.0)
            yield verdict, f"{percent(sparsity)}: FlipOut {flipout}, {other_name} {other}: behind by {gap}"


def _is_near_best(option: str, default: float, allowed: float) -> Callable[[Sequence[Record]], Comparisons]:
    """Check that the default of an option is within `allowed` points of the best value that was tried."""

    def compare(runs: Sequence[Record]) -> Comparisons:
        name = "λ" if option == "noise" else option
        scan = {key: cell for key, cell in by_option(runs, option).items() if cell.values}
        for sparsity in sorted({s for _, s in scan}):
            column = {value: cell for (value, s), cell in scan.items() if s == sparsity}
            if default not in column or len(column) < FEWEST_VALUES:
                yield Verdict.OPEN, f"{percent(sparsity)}: only {counted(len(column), 'value')} tried"
                continue
            best = max(column, key=lambda value: column[value].mean)
            gap = column[best].minus(column[default])
            verdict = Verdict.HOLDS if best == default else _compare_gap(gap.interval, allowed)
            numbers = f"{name} = {default:g}: {column[default]}; the best of {len(column)}, {name} = {best:g}"
            yield verdict, f"{percent(sparsity)}: {numbers}: {column[best]}; behind by {gap}"

    return compare


def _large_powers_are_better(runs: Sequence[Record]) -> Comparisons:
    scan = {key: cell for key, cell in by_option(runs, "p").items() if cell.values}
    for sparsity in sorted({s for _, s in scan}):
        large = {p: scan[p, sparsity] for p in (1, 2, 4) if (p, sparsity) in scan}
        small = {p: scan[p, sparsity] for p in (0, 0.5) if (p, sparsity) in scan}
        if large and small:
            worst = min(large, key=lambda p: large[p].mean)
            best = max(small, key=lambda p: small[p].mean)
            verdict, numbers = _compare_cells(
                f"the worst of p = 1, 2 and 4 ({worst:g})",
                large[worst],
                f"the best of p = 0 and 1/2 ({best:g})",
                small[best],
            )
            yield verdict, f"{percent(sparsity)}: {numbers}"


def _effect_of_noise(method: str, with_noise: str, without: str) -> Callable[[Sequence[Record]], Comparisons]:
    """Check that noise lowers the accuracy up to 98.44 % and raises it above."""

    def compare(runs: Sequence[Record]) -> Comparisons:
        for sparsity, column in _columns(runs):
            if with_noise in column and without in column:
                pair = [("with noise", column[with_noise]), ("without noise", column[without])]
                (name, cell), (other_name, other) = pair if sparsity > EXTREME else pair[::-1]
                verdict, numbers = _compare_cells(name, cell, other_name, other)
                yield verdict, f"{percent(sparsity)}: {method} {numbers}"

    return compare


def _beats_noisy_magnitude(runs: Sequence[Record]) -> Comparisons:
    for sparsity, column in list(_columns(runs))[-1:]:
        if {"FlipOut (paper)", "Global magnitude, noise 1"} <= column.keys():
            noisy = column["Global magnitude, noise 1"]
            verdict, numbers = _compare_cells(
                "FlipOut (paper)", column["FlipOut (paper)"], "magnitude with noise", noisy
            )
            yield verdict, f"{percent(sparsity)}: {numbers}"


def _has_smaller_spread(runs: Sequence[Record]) -> Comparisons:
    for sparsity, column in list(_columns(runs))[-1:]:
        flipout, noisy = column.get("FlipOut (paper)", Cell(())), column.get("Global magnitude, noise 1", Cell(()))
        if flipout.spread is not None and noisy.spread is not None:
            smaller, larger = has_larger_spread(noisy, flipout), has_larger_spread(flipout, noisy)
            verdict = Verdict.HOLDS if smaller else Verdict.FAILS if larger else Verdict.LEVEL
            numbers = f"FlipOut ± {flipout.spread:.2f}, magnitude with noise ± {noisy.spread:.2f}"
            yield verdict, f"{percent(sparsity)}: {numbers}, {flipout.seeds} seeds"


def _fine_tuning_gains_little(runs: Sequence[Record]) -> Comparisons:
    gains = [
        100 * (run.accuracy - before)
        for run in runs
        if run.settings.sparsity is None
        and run.accuracy is not None
        and run.sparsity is not None
        and run.sparsity > 0.5
        and (before := run.before_fine_tuning) is not None
    ]
    if gains:
        gain = PairedDifference(tuple(gains))
        numbers = (
            f"{counted(len(gains), 'run')} with more than half of the weights pruned gained {gain} points on average, "
            f"{max(gains):.2f} at most"
        )
        yield _compare_gap(gain.interval, 0.5), numbers


def _collapsed(runs: Sequence[Record]) -> Iterator[tuple[float, list[Record], list[Record]]]:
    """For each extreme sparsity the finished runs of SNIP, and those of them with less than twice chance accuracy."""
    snip = [run for run in runs if run.settings.method == "snip" and run.accuracy is not None]
    for sparsity in sorted({run.settings.sparsity for run in snip if run.settings.sparsity is not None}):
        group = [run for run in snip if run.settings.sparsity == sparsity]
        if sparsity > EXTREME and group[0].settings.data in DATA:
            chance = 1 / DATA[group[0].settings.data].classes
            yield sparsity, group, [run for run in group if run.accuracy is not None and run.accuracy < 2 * chance]


def _snip_collapses(runs: Sequence[Record]) -> Comparisons:
    for sparsity, group, collapsed in _collapsed(runs):
        verdict = Verdict.FAILS if not collapsed else Verdict.MIXED
        if len(collapsed) == len(group):
            verdict = Verdict.HOLDS
        yield verdict, f"{percent(sparsity)}: {len(collapsed)} of {len(group)} runs are near chance"


def _snip_has_dead_layers(runs: Sequence[Record]) -> Comparisons:
    for sparsity, _, collapsed in _collapsed(runs):
        if collapsed:
            dead = [run for run in collapsed if run.result is not None and run.result["dead_layers"]]
            verdict = Verdict.HOLDS if len(dead) == len(collapsed) else Verdict.FAILS
            yield verdict, f"{percent(sparsity)}: {len(dead)} of {len(collapsed)} collapsed runs have a dead layer"


def _noise_adds_over_shoots(runs: Sequence[Record]) -> Comparisons:
    shares = shot_shares([run for run in runs if run.settings.method == "flipout-paper"])
    noisy, quiet = shares.get("FlipOut (paper)", {}), shares.get("FlipOut (paper), no noise", {})
    for sparsity in sorted(noisy.keys() & quiet.keys()):
        verdict, numbers = _compare_cells("with noise", noisy[sparsity], "without noise", quiet[sparsity])
        yield verdict, f"{percent(sparsity)}: over-shoots in percent of all shots, {numbers}"


CLAIMS = (
    Claim("FlipOut is the best method at 99.61 % and beyond (stated for ResNet18 and VGG19)", "results", _is_best),
    Claim("Below 99.61 % FlipOut is within one point of the best method", "results", _is_within_a_point),
    Claim("λ = 1 is close to the best value (within 2 points)", "table2", _is_near_best("noise", 1.0, 2.0)),
    Claim("p = 2 is the best value or close to it (within 1.1 points)", "table3", _is_near_best("p", 2.0, 1.1)),
    Claim("p = 1, 2 and 4 are better than p = 0 and 1/2", "table3", _large_powers_are_better),
    Claim(
        "Noise makes FlipOut slightly worse up to 98.44 %, and better above",
        "ablation",
        _effect_of_noise("FlipOut", "FlipOut (paper)", "FlipOut (paper), no noise"),
    ),
    Claim(
        "Noise makes global magnitude slightly worse up to 98.44 %, and better above",
        "ablation",
        _effect_of_noise("magnitude", "Global magnitude, noise 1", "Global magnitude"),
    ),
    Claim(
        "Noise alone does not explain the gain: FlipOut beats magnitude with noise at the highest sparsity",
        "ablation",
        _beats_noisy_magnitude,
    ),
    Claim(
        "At the highest sparsity FlipOut has a smaller spread than magnitude with noise",
        "ablation",
        _has_smaller_spread,
    ),
    Claim("Fine-tuning Hoyer-Square gains less than half a point", "results", _fine_tuning_gains_little),
    Claim("SNIP collapses at 99.61 % and beyond", "results", _snip_collapses),
    Claim(
        "SNIP collapses because a layer dies",
        "results",
        _snip_has_dead_layers,
        "In the paper SNIP ends at chance because of bugs in its code. The SNIP here scores the initial network.",
    ),
    Claim("Noise turns under-shoots into over-shoots", "aim", _noise_adds_over_shoots),
)
