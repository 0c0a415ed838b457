"""The paper's claims, one by one, held against results. What is smaller than the spread is no difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .labels import by_network, percent
from .records import Record, Records
from .statistics import Cell, beats, cells, sparsities
from .tables import by_option

EXTREME = 0.995  # the paper's "99.61 % and beyond"


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
    read: Callable[[Sequence[Record]], Iterator[tuple[str, str]]]

    def findings(self, all_records: Sequence[Records]) -> list[Finding]:
        found = []
        for records in all_records:
            for network, runs in by_network(records.of(self.part)).items():
                found += [Finding(network, verdict, numbers) for verdict, numbers in self.read(runs)]
        return found


def _versus(name: str, one: Cell, other_name: str, other: Cell) -> tuple[str, str]:
    """Which of two is better, in words."""
    said = f"{name} {one}, {other_name} {other}"
    ahead, behind = beats(one, other), beats(other, one)
    if ahead is None or behind is None:
        return "open", f"{said} (too few seeds to tell)"
    return ("holds" if ahead else "does not hold" if behind else "level"), said


def _wins(runs: Sequence[Record]) -> Iterator[tuple[str, str]]:
    found = cells(runs)
    for sparsity in (s for s in sparsities(found) if s > EXTREME):
        column = {label: of[sparsity] for label, of in found.items() if sparsity in of and of[sparsity].values}
        ours = column.pop("FlipOut", None)
        if ours is None or not column:
            continue
        rival = max(column, key=lambda label: column[label].mean)
        verdict, said = _versus("FlipOut", ours, rival, column[rival])
        yield verdict, f"{percent(sparsity)}: {said}"


def _within_a_point(runs: Sequence[Record]) -> Iterator[tuple[str, str]]:
    found = cells(runs)
    for sparsity in (s for s in sparsities(found) if s < EXTREME):
        column = {label: of[sparsity] for label, of in found.items() if sparsity in of and of[sparsity].values}
        if "FlipOut" not in column:
            continue
        top = max(column, key=lambda label: column[label].mean)
        gap = column[top].mean - column["FlipOut"].mean
        said = (
            f"{percent(sparsity)}: FlipOut {column['FlipOut']}, the best ({top}) {column[top]}, {gap:.2f} points apart"
        )
        yield ("holds" if gap <= 1 else "does not hold"), said


def _near_the_best(
    option: str, default: float, allowed: float
) -> Callable[[Sequence[Record]], Iterator[tuple[str, str]]]:
    """Whether the default of an option is within so many points of its best value."""

    def read(runs: Sequence[Record]) -> Iterator[tuple[str, str]]:
        found = {key: cell for key, cell in by_option(runs, option).items() if cell.values}
        for sparsity in sorted({s for _, s in found}):
            column = {value: cell for (value, s), cell in found.items() if s == sparsity}
            if default not in column:
                continue
            top = max(column, key=lambda value: column[value].mean)
            gap = column[top].mean - column[default].mean
            name = "λ" if option == "noise" else option
            said = f"{percent(sparsity)}: {name} = {default:g} {column[default]}, best {name} = {top:g} {column[top]}"
            # A better value that the spread does not tell from the default is as good as the default.
            level = top != default and beats(column[top], column[default]) is False
            yield ("holds" if gap <= allowed or level else "does not hold"), f"{said}, {gap:.2f} points apart"

    return read


def _noise(runs: Sequence[Record]) -> Iterator[tuple[str, str]]:
    found = cells(runs)
    for sparsity in sparsities(found):
        noisy, quiet = (found.get(label, {}).get(sparsity, Cell(())) for label in ("FlipOut", "FlipOut, no noise"))
        if not noisy.values or not quiet.values:
            continue
        # Up to 98.44 % noise is said to hurt, beyond it to help.
        pair = (
            (("with noise", noisy), ("without", quiet)) if sparsity > EXTREME else (("without", quiet), ("with", noisy))
        )
        verdict, said = _versus(pair[0][0], pair[0][1], pair[1][0], pair[1][1])
        yield verdict, f"{percent(sparsity)}: FlipOut {said}"


def _spread(runs: Sequence[Record]) -> Iterator[tuple[str, str]]:
    found = cells(runs)
    ours, noisy = found.get("FlipOut", {}), found.get("Global magnitude, noise 1", {})
    for sparsity in sorted(set(ours) & set(noisy)):
        one, other = ours[sparsity].spread, noisy[sparsity].spread
        if sparsity > EXTREME and one is not None and other is not None:
            said = f"FlipOut ± {one:.2f}, noisy magnitude ± {other:.2f} ({ours[sparsity].seeds} seeds)"
            yield ("holds" if one < other else "does not hold"), f"{percent(sparsity)}: {said}"


def _fine_tuning(runs: Sequence[Record]) -> Iterator[tuple[str, str]]:
    gains = [
        100 * (run.accuracy - before)
        for run in runs
        if run.settings.sparsity is None and run.accuracy is not None and (before := run.before_fine_tuning) is not None
    ]
    if gains:
        cell = Cell(tuple(gains))
        said = f"over {len(gains)} runs fine-tuning gained {cell} points, at most {max(gains):.2f}"
        yield ("holds" if abs(cell.mean) < 0.5 else "does not hold"), said


def _snip(runs: Sequence[Record]) -> Iterator[tuple[str, str]]:
    for sparsity, cell in cells(runs).get("SNIP", {}).items():
        if sparsity > EXTREME and cell.values:
            collapsed = sum(value < 20 for value in cell.values)
            said = f"{cell}; {collapsed} of {cell.seeds} collapsed, {cell.runs_with_dead} with a dead layer"
            verdict = "holds" if collapsed and collapsed <= cell.runs_with_dead else "does not hold"
            yield verdict, f"{percent(sparsity)}: {said}"


def _shots(runs: Sequence[Record]) -> Iterator[tuple[str, str]]:
    shares: dict[tuple[float, bool], list[float]] = {}
    for run in runs:
        if run.result is not None and run.result.get("aim") and run.settings.sparsity is not None:
            shots = run.result["aim"]
            share = 100 * shots["over_shoots"] / max(1, shots["over_shoots"] + shots["under_shoots"])
            shares.setdefault((run.settings.sparsity, run.settings.noise == 0), []).append(share)
    for sparsity in sorted({sparsity for sparsity, _ in shares}):
        noisy, quiet = (Cell(tuple(shares.get((sparsity, off), ()))) for off in (False, True))
        if noisy.values and quiet.values:
            verdict, said = _versus("with noise", noisy, "without", quiet)
            yield verdict, f"{percent(sparsity)}: over-shoots in percent of all shots, {said}"


CLAIMS = (
    Claim("FlipOut is the best method at 99.61 % and beyond", "results", _wins),
    Claim("Below that it is within a point of the best", "results", _within_a_point),
    Claim("λ = 1 is near the best (within 2 points)", "table2", _near_the_best("noise", 1.0, 2.0)),
    Claim("p = 2 is near the best (within 1.1 points)", "table3", _near_the_best("p", 2.0, 1.1)),
    Claim("Noise hurts a little up to 98.44 %, and helps beyond", "ablation", _noise),
    Claim("At the extreme FlipOut's spread is smaller than that of noisy magnitude", "ablation", _spread),
    Claim("Fine-tuning Hoyer-Square gains next to nothing", "results", _fine_tuning),
    Claim("SNIP collapses at the extreme, because a layer died", "results", _snip),
    Claim("Noise turns under-shoots into over-shoots", "aim", _shots),
)
