"""How much of a model a pruner covers, and a warning if it is little."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from .layers import Candidate, Layer, Patterns, candidates, excluded_numbers
from .warnings import CoverageWarning

SHOWN = 6
"""How many parameters a text names."""

LITTLE = 0.5
"""A pruner that covers less than this share of the matrix weights warns."""


@dataclass(frozen=True)
class LeftOut:
    """A parameter that a pruner does not cover.

    `kind` is "matrix", "embedding", "adapter", "frozen", or "vector" for biases, norms and scalars.
    """

    name: str
    size: int
    kind: str


@dataclass(frozen=True)
class Coverage:
    """How many parameters of a model a pruner covers; prints as a sentence."""

    covered: int
    parameters: int
    left_out: tuple[LeftOut, ...]

    @property
    def share(self) -> float:
        return self.covered / self.parameters if self.parameters else 0.0

    def __str__(self) -> str:
        text = f"{self.covered:,} of {self.parameters:,} parameters ({self.share:.1%})"
        vectors = [part.size for part in self.left_out if part.kind == "vector"]
        others = sorted((part for part in self.left_out if part.kind != "vector"), key=lambda part: -part.size)
        named = [f"{part.name} ({_described(part)})" for part in others[:SHOWN]]
        if len(others) > SHOWN:
            named.append(f"{len(others) - SHOWN} more ({sum(part.size for part in others[SHOWN:]):,})")
        if vectors:
            named.append(f"biases, norms and scalars ({sum(vectors):,})")
        return f"{text}; left out: {', '.join(named)}" if named else text


def _described(part: LeftOut) -> str:
    return f"{part.size:,}" if part.kind == "matrix" else f"{part.size:,}, {part.kind}"


def coverage_of(model: nn.Module, layers: Sequence[Layer]) -> Coverage:
    """What the layers of a pruner cover of a model."""
    mine = {id(layer.weight) for layer in layers}
    every = list(candidates(model))
    left = tuple(LeftOut(c.names[0], c.weight.numel(), _kind(c)) for c in every if id(c.weight) not in mine)
    covered = sum(layer.weight.numel() for layer in layers)
    return Coverage(covered, sum(c.weight.numel() for c in every), left)


def warn_of_low_coverage(
    model: nn.Module, layers: Sequence[Layer], include: Patterns | None, exclude: Patterns | None
) -> None:
    """Warn if a default selection covers less than half of the weights that are matrices.

    Embeddings, adapters and frozen weights are left out for a reason, and what `exclude` matches on purpose: they do
    not count.
    """
    if include is not None:
        return
    every = list(candidates(model))
    mine, unwanted = {id(layer.weight) for layer in layers}, excluded_numbers(every, exclude)
    covered = sum(layer.weight.numel() for layer in layers)
    missed = [c for c in every if id(c.weight) not in mine and c.number not in unwanted and _kind(c) == "matrix"]
    if covered >= LITTLE * (covered + sum(c.weight.numel() for c in missed)):
        return
    warnings.warn(
        f"this pruner covers {coverage_of(model, layers)}. By default only Linear and convolution modules are pruned. "
        "Select other weights with include=, such as include='*' for all matrices, or leave them out with exclude= to "
        "silence this warning",
        CoverageWarning,
        stacklevel=4,
    )


def _kind(candidate: Candidate) -> str:
    if candidate.weight.ndim < 2:
        return "vector"
    if any(isinstance(module, (nn.Embedding, nn.EmbeddingBag)) for module in candidate.modules):
        return "embedding"
    if candidate.adapter:
        return "adapter"
    return "matrix" if candidate.weight.requires_grad else "frozen"
