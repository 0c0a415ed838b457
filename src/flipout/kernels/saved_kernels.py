"""What a saved state says about sparse kernels, as text."""

from __future__ import annotations

import json
from typing import NamedTuple


class SavedKernels(NamedTuple):
    """The measured table, and the kind of each layer: a training that is resumed with them decides the same."""

    densities: dict[str, float]
    """For each kind of layer the highest density at which it is faster with sparse kernels."""
    keys: dict[str, tuple[str, str]]
    """For each weight two keys of the table: for gradients of the kept weights, and for all gradients."""

    def as_text(self) -> str:
        return json.dumps(self._asdict())


def read_saved(text: str) -> SavedKernels:
    """Read the text of a state. That of a pruner without sparse kernels is empty."""
    if not text:
        return SavedKernels({}, {})
    try:
        content = json.loads(text)
        densities = {str(key): _density(value) for key, value in content["densities"].items()}
        keys = {str(name): _pair(pair, densities) for name, pair in content["keys"].items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"`sparse_kernels` of the state cannot be read: {error!r}") from None
    return SavedKernels(densities, keys)


def _density(value: object) -> float:
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{value!r} is not a density")
    return float(value)


def _pair(pair: object, densities: dict[str, float]) -> tuple[str, str]:
    if not isinstance(pair, list) or len(pair) != 2 or not all(key in densities for key in pair):
        raise ValueError(f"{pair!r} is not a pair of keys of the table")
    return pair[0], pair[1]
