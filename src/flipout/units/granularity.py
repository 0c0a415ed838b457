"""The setting: which weights are pruned together, how their scores become one, and what a sparsity counts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, get_args

import torch
from torch import Tensor

Reduction = Literal["mean", "sum", "norm"]
Target = Literal["weights", "macs", "parameters", "latency"]
"""What a sparsity is a share of."""
GranularityChoice = str | tuple[int, int]
"""`"weight"`, `"kernel"`, `"channel"`, a block `(rows, columns)`, or a pattern such as `"2:4"`."""


@dataclass(frozen=True)
class Granularity:
    """What is pruned as one unit.

    Args:
        kind: "weight", "kernel", "channel", "block" or "pattern".
        numbers: the rows and columns of a block, or N and M of a pattern.
        reduce: how the scores of the weights of a unit become the score of the unit.
        target: what a sparsity is a share of; all but "weights" are for channels.
        round_to: the number of channels that each layer keeps is a multiple of this, or all of them.
        residual: whether channels that norms mix are pruned too, such as those of a residual stream.
    """

    kind: Literal["weight", "kernel", "channel", "block", "pattern"] = "weight"
    numbers: tuple[int, int] = (1, 1)
    reduce: Reduction = "mean"
    target: Target = "weights"
    round_to: int = 1
    residual: bool = False

    def __str__(self) -> str:
        first, second = self.numbers
        return {"block": f"{first}x{second}", "pattern": f"{first}:{second}"}.get(self.kind, self.kind)


def as_granularity(
    choice: GranularityChoice,
    reduce: Reduction = "mean",
    target: Target = "weights",
    round_to: int = 1,
    residual: bool = False,
) -> Granularity:
    """Granularity from what a user may pass."""
    if reduce not in get_args(Reduction):
        raise ValueError(f"reduce is {reduce!r}; give 'mean', 'sum' or 'norm'")
    if target not in get_args(Target):
        raise ValueError(f"target is {target!r}; give 'weights', 'macs', 'parameters' or 'latency'")
    if not isinstance(round_to, Integral) or isinstance(round_to, bool) or round_to < 1:
        raise ValueError(f"round_to is {round_to!r}; give a whole number of channels, such as 8")
    if choice == "channel":
        return Granularity("channel", reduce=reduce, target=target, round_to=int(round_to), residual=residual)
    if target != "weights" or round_to != 1 or residual:
        option = f"target={target!r}" if target != "weights" else f"round_to={round_to}"
        option = "residual=True" if residual else option
        raise ValueError(f"{option} is for whole channels: give granularity='channel' along with it")
    if choice in ("weight", "kernel"):
        return Granularity(choice, reduce=reduce)
    if isinstance(choice, str) and (found := re.fullmatch(r"\s*(\d+)\s*:\s*(\d+)\s*", choice)):
        kept, group = int(found[1]), int(found[2])
        if not 1 <= kept < group:
            raise ValueError(f"granularity is {choice!r}; in a pattern N:M, N is at least 1 and less than M")
        return Granularity("pattern", (kept, group), reduce)
    if isinstance(choice, str) and (found := re.fullmatch(r"\s*\(?\s*(\d+)\s*[,x]\s*(\d+)\s*\)?\s*", choice)):
        return as_granularity((int(found[1]), int(found[2])), reduce)
    if not isinstance(choice, str) and isinstance(choice, Sequence) and len(choice) == 2:
        if not all(isinstance(side, int) and not isinstance(side, bool) and side >= 1 for side in choice):
            raise ValueError(f"granularity is {choice!r}; give the rows and columns of a block, each at least 1")
        rows, columns = map(int, choice)
        return Granularity("block", (rows, columns), reduce)
    raise ValueError(
        f"granularity is {choice!r}; give 'weight', 'kernel', 'channel', rows and columns of a block such as (16, 1), "
        "or a pattern such as '2:4'"
    )


def accurate(scores: Tensor) -> Tensor:
    """Scores in the type that they are reduced in: float64 for integers and doubles, float32 for all others."""
    precise = not scores.is_floating_point() or scores.dtype == torch.float64
    return scores.to(torch.float64 if precise else torch.float32)


def reduce_scores(scores: Tensor, axes: tuple[int, ...], how: Reduction) -> Tensor:
    """The scores of units along some axes. A mean of zero-padded scores has to be corrected by the caller."""
    if how == "norm":  # the squares of small scores are 0 in float32
        norm: Tensor = torch.linalg.vector_norm(scores, dim=axes, dtype=torch.float64)
        return norm.to(scores.dtype)
    return scores.mean(axes) if how == "mean" else scores.sum(axes)
