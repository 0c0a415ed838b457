"""Limits by layer: one number for all weights, or numbers by name pattern."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .ranking import read_floor
from .weights import Weight, matches

Floor = int | float | Mapping[str, int | float]
"""The least number or share of weights that each layer keeps, or such numbers by name pattern."""
Sparsity = float | Mapping[str, float]
"""A share of all weights, or shares by name pattern; a weight belongs to the first pattern that matches it."""


def read_floors(floor: Floor, weights: Sequence[Weight]) -> list[int]:
    """The least number of weights that each layer keeps. A weight that no pattern matches has none."""
    patterns = floor if isinstance(floor, Mapping) else {"*": floor}
    floors = dict.fromkeys(weights, 0)
    for pattern, own in by_pattern(patterns, weights, "floor").items():
        floors |= zip(own, read_floor(patterns[pattern], [weight.size for weight in own]), strict=True)
    return list(floors.values())


def check_floors(floors: Sequence[int], least: int, floor: Floor | str = "") -> None:
    """Refuse floors that are more than what is kept at the end. `floor` is what the user gave, for the message."""
    if sum(floors) > least:
        raise ValueError(
            f"floor={floor} keeps {sum(floors):,} weights in {len(floors)} layers, but the requested sparsity leaves "
            f"only {least:,}: lower the floor or the sparsity"
        )


def by_pattern(patterns: Iterable[str], weights: Sequence[Weight], argument: str) -> dict[str, list[Weight]]:
    """The weights of each pattern: a weight belongs to the first one that matches it."""
    members: dict[str, list[Weight]] = {pattern: [] for pattern in patterns}
    for weight in weights:
        first = next((pattern for pattern in members if matches(weight.name, pattern)), None)
        if first is not None:
            members[first].append(weight)
    if strange := [pattern for pattern in members if not any(matches(weight.name, pattern) for weight in weights)]:
        raise ValueError(f"{argument}={{{strange[0]!r}: ...}} matches no weight that is pruned")
    return members


def largest(sparsity: Sparsity) -> float:
    """The largest of several sparsities."""
    if not isinstance(sparsity, Mapping):
        return sparsity
    if not sparsity:
        raise ValueError("sparsity is an empty mapping; give shares by name pattern, such as {'*': 0.9}")
    return max(sparsity.values())
