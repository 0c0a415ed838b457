"""What acceleration chose for each layer and for the whole network, and how it chooses."""

from __future__ import annotations

from dataclasses import dataclass

from ...text_table import table
from .interleaved_timing import Timing

MIN_SPEEDUP_RATIO = 0.95
"""An alternative is chosen only if it takes less than this share of the time of the first form."""


@dataclass(frozen=True)
class AccelerationChoice:
    """The form that was chosen for a layer or for the whole network.

    Args:
        name: the name of the layer.
        sparsity: the share of zeros among its weights.
        chosen: the form that was chosen.
        why: the reason.
        tried: the median time of each form that was tried, in milliseconds.
    """

    name: str
    sparsity: float
    chosen: str
    why: str
    tried: dict[str, float]


class AccelerationChoices(list[AccelerationChoice]):
    """All choices; prints as a table."""

    def __str__(self) -> str:
        rows = [(choice.name, f"{choice.sparsity:.2%}", choice.chosen, choice.why) for choice in self]
        return table(("layer", "zeros", "chosen", "why"), rows)


def choose_form(name: str, sparsity: float, times: dict[str, Timing]) -> AccelerationChoice:
    """Choose the fastest of the forms that were timed; the first is the one to beat."""
    chosen = fastest_or_first(times)
    tried = {form: time.median for form, time in times.items()}
    return AccelerationChoice(name, sparsity, chosen, _explain(chosen, tried), tried)


def fastest_or_first(times: dict[str, Timing]) -> str:
    """Return the form with the smallest median if it beats the first by the margin, else the first."""
    first, fastest = next(iter(times)), min(times, key=lambda name: times[name].median)
    return fastest if times[fastest].median < MIN_SPEEDUP_RATIO * times[first].median else first


def _explain(chosen: str, tried: dict[str, float]) -> str:
    (first, time), *others = tried.items()
    if chosen != first:
        return f"{tried[chosen]:.3f} ms, {first} takes {time:.3f}"
    if not others:
        return "there is no alternative"
    alternative, fastest = min(others, key=lambda other: other[1])
    return f"{time:.3f} ms, {alternative} takes {fastest:.3f}"
