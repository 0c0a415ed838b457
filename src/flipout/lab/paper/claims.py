"""The paper's claims, one by one, held against results. What is smaller than the spread is no difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..data import DATA
from ..reports.labels import by_network, counted, percent
from ..reports.records import Record, Records
from ..reports.seed_statistics import Cell, beats, by_option, cells, shot_shares, sparsities, wider

EXTREME = 0.995  # the paper's "99.61 % and beyond"
Reading = Iterator[tuple[str, str]]


@dataclass(frozen=True)
class Finding:
    """What one network says of a claim: "holds", "does not hold", "level" or "open", and the numbers."""

    network: str
    verdict: str
    numbers: str


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, the part of a grid that speaks of it, and how it is read there."""

    text: str
    part: str
    read: Callable[[Sequence[Record]], Reading]
    remark: str = ""

    def findings(self, all_records: Sequence[Records]) -> list[Finding]:
        found = []
        for records in all_records:
            for network, runs in by_network(records.of(self.part)).items():
                found += [Finding(network, verdict, numbers) for verdict, numbers in self.read(runs)]
        return found


def _versus(name: str, one: Cell, other_name: str, other: Cell) -> tuple[str, str]:
    """Whether the first of two is better, in words."""
    said = f"{name} {one}, {other_name} {other}"
    ahead, behind = beats(one, other), beats(other, one)
    if ahead is None or behind is None:
        return "open", f"{said} (too few seeds to tell)"
    return ("holds" if ahead else "does not hold" if behind else "level"), said


def _columns(runs: Sequence[Record]) -> Iterator[tuple[float, dict[str, Cell]]]:
    """By sparsity what each method came to, where it came to anything."""
    found = cells(runs)
    for sparsity in sparsities(found):
        yield sparsity, {label: of[sparsity] for label, of in found.items() if sparsity in of and of[sparsity].values}


def _wins(runs: Sequence[Record]) -> Reading:
    for sparsity, column in _columns(runs):
        ours = column.pop("FlipOut", None)
        if sparsity > EXTREME and ours is not None and column:
            rival = max(column, key=lambda label: column[label].mean)
            verdict, said = _versus(
                "FlipOut", ours, f"the best of {counted(len(column), 'other')}, {rival},", column[rival]
            )
            yield verdict, f"{percent(sparsity)}: {said}"


def _within_a_point(runs: Sequence[Record]) -> Reading:
    for sparsity, column in _columns(runs):
        ours = column.pop("FlipOut", None)
        if sparsity < EXTREME and ours is not None and column:
            top = max(column, key=lambda label: column[label].mean)
            gap = column[top].mean - ours.mean
            said = (
                f"FlipOut {ours}, the best of {counted(len(column), 'other')}, {top}, {column[top]}: {gap:+.2f} points"
            )
            seeds = min(ours.seeds, column[top].seeds)
            verdict = "open" if seeds == 1 else "holds" if gap <= 1 else "does not hold"
            yield verdict, f"{percent(sparsity)}: {said}"


def _near_the_best(option: str, default: float, allowed: float, tried: int) -> Callable[[Sequence[Record]], Reading]:
    """Whether the default of an option is within so many points of the best of the values that were tried."""

    def read(runs: Sequence[Record]) -> Reading:
        found = {key: cell for key, cell in by_option(runs, option).items() if cell.values}
        for sparsity in sorted({s for _, s in found}):
            column = {value: cell for (value, s), cell in found.items() if s == sparsity}
            if default not in column or len(column) < tried:
                yield "open", f"{percent(sparsity)}: only {len(column)} of {tried} values were tried"
                continue
            top = max(column, key=lambda value: column[value].mean)
            gap, name = column[top].mean - column[default].mean, "λ" if option == "noise" else option
            said = f"{name} = {default:g} {column[default]}, best of {tried} {name} = {top:g} {column[top]}"
            better = beats(column[top], column[default])
            unlike = "open" if better is None else "does not hold" if better else "level"
            yield ("holds" if gap <= allowed else unlike), f"{percent(sparsity)}: {said}, {gap:.2f} points apart"

    return read


def _large_powers(runs: Sequence[Record]) -> Reading:
    found = {key: cell for key, cell in by_option(runs, "p").items() if cell.values}
    for sparsity in sorted({s for _, s in found}):
        large, small = ({p: found[p, sparsity] for p in of if (p, sparsity) in found} for of in ((1, 2, 4), (0, 0.5)))
        if large and small:
            worst = min(large, key=lambda p: large[p].mean)
            best = max(small, key=lambda p: small[p].mean)
            verdict, said = _versus(f"the worst of them, p = {worst:g},", large[worst], f"p = {best:g}", small[best])
            yield verdict, f"{percent(sparsity)}: {said}"


def _noise(method: str, noisy: str, quiet: str) -> Callable[[Sequence[Record]], Reading]:
    """Up to 98.44 % noise is said to hurt, beyond it to help."""

    def read(runs: Sequence[Record]) -> Reading:
        for sparsity, column in _columns(runs):
            if noisy in column and quiet in column:
                pair = [("with noise", column[noisy]), ("without", column[quiet])]
                (name, one), (other_name, other) = pair if sparsity > EXTREME else pair[::-1]
                verdict, said = _versus(name, one, other_name, other)
                yield verdict, f"{percent(sparsity)}: {method} {said}"

    return read


def _not_just_noise(runs: Sequence[Record]) -> Reading:
    for sparsity, column in list(_columns(runs))[-1:]:
        if {"FlipOut", "Global magnitude, noise 1"} <= column.keys():
            noisy = column["Global magnitude, noise 1"]
            verdict, said = _versus("FlipOut", column["FlipOut"], "noisy magnitude", noisy)
            yield verdict, f"{percent(sparsity)}: {said}"


def _spread(runs: Sequence[Record]) -> Reading:
    for sparsity, column in list(_columns(runs))[-1:]:
        one, other = column.get("FlipOut", Cell(())), column.get("Global magnitude, noise 1", Cell(()))
        if one.spread is not None and other.spread is not None:
            said = f"FlipOut ± {one.spread:.2f}, noisy magnitude ± {other.spread:.2f}, {one.seeds} seeds"
            verdict = "holds" if wider(other, one) else "does not hold" if wider(one, other) else "level"
            yield verdict, f"{percent(sparsity)}: {said}"


def _fine_tuning(runs: Sequence[Record]) -> Reading:
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
        mean = sum(gains) / len(gains)
        said = (
            f"{len(gains)} runs pruned by more than half gained {mean:.2f} points on average, at most {max(gains):.2f}"
        )
        yield ("holds" if mean < 0.5 else "does not hold"), said


def _collapsed(runs: Sequence[Record]) -> Iterator[tuple[float, list[Record], list[Record]]]:
    """By sparsity the finished runs of SNIP, and those of them that do hardly better than chance."""
    ours = [run for run in runs if run.settings.method == "snip" and run.accuracy is not None]
    for sparsity in sorted({run.settings.sparsity for run in ours if run.settings.sparsity is not None}):
        of = [run for run in ours if run.settings.sparsity == sparsity]
        if sparsity > EXTREME and of[0].settings.data in DATA:
            chance = 1 / DATA[of[0].settings.data].classes
            yield sparsity, of, [run for run in of if run.accuracy is not None and run.accuracy < 2 * chance]


def _snip_collapses(runs: Sequence[Record]) -> Reading:
    for sparsity, of, collapsed in _collapsed(runs):
        verdict = "holds" if len(collapsed) == len(of) else "does not hold" if not collapsed else "level"
        yield verdict, f"{percent(sparsity)}: {len(collapsed)} of {len(of)} runs are near chance"


def _snip_dead(runs: Sequence[Record]) -> Reading:
    for sparsity, _, collapsed in _collapsed(runs):
        if collapsed:
            dead = [run for run in collapsed if run.result is not None and run.result["dead_layers"]]
            verdict = "holds" if len(dead) == len(collapsed) else "does not hold"
            yield verdict, f"{percent(sparsity)}: {len(dead)} of {len(collapsed)} collapsed runs have a dead layer"


def _shots(runs: Sequence[Record]) -> Reading:
    shares = shot_shares([run for run in runs if run.settings.method == "flipout"])
    noisy, quiet = shares.get("FlipOut", {}), shares.get("FlipOut, no noise", {})
    for sparsity in sorted(noisy.keys() & quiet.keys()):
        verdict, said = _versus("with noise", noisy[sparsity], "without", quiet[sparsity])
        yield verdict, f"{percent(sparsity)}: over-shoots in percent of all shots, {said}"


CLAIMS = (
    Claim("FlipOut is the best method at 99.61 % and beyond (said of ResNet18 and VGG19)", "results", _wins),
    Claim("Below that it is within a point of the best", "results", _within_a_point),
    Claim("λ = 1 is near the best (within 2 points)", "table2", _near_the_best("noise", 1.0, 2.0, 16)),
    Claim("p = 2 is the best, or nearly (within 1.1 points)", "table3", _near_the_best("p", 2.0, 1.1, 5)),
    Claim("p of 1, 2 and 4 are better than 0 and 1/2", "table3", _large_powers),
    Claim(
        "Noise hurts FlipOut a little up to 98.44 %, and helps it beyond",
        "ablation",
        _noise("FlipOut", "FlipOut", "FlipOut, no noise"),
    ),
    Claim(
        "Noise hurts global magnitude a little up to 98.44 %, and helps it beyond",
        "ablation",
        _noise("magnitude", "Global magnitude, noise 1", "Global magnitude"),
    ),
    Claim("It is not just the noise: FlipOut beats noisy magnitude at the extreme", "ablation", _not_just_noise),
    Claim("At the extreme FlipOut's spread is smaller than that of noisy magnitude", "ablation", _spread),
    Claim("Fine-tuning Hoyer-Square gains next to nothing (less than half a point)", "results", _fine_tuning),
    Claim("SNIP collapses at the extreme", "results", _snip_collapses),
    Claim(
        "SNIP collapses because a layer died",
        "results",
        _snip_dead,
        "The paper's own SNIP ends at chance because of mistakes in its code; this one scores the initial network.",
    ),
    Claim("Noise turns under-shoots into over-shoots", "aim", _shots),
)
