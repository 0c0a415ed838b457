"""Which statistics a criterion asks for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any


def requested(criterion: Callable[..., Any], known: Iterable[str]) -> list[str]:
    """The statistics that a criterion asks for: its arguments without a default value."""
    try:
        parameters = inspect.signature(criterion).parameters.values()
    except (ValueError, TypeError):
        raise ValueError(
            f"{criterion} has no readable signature; wrap it: lambda weight: {criterion}(weight)"
        ) from None
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    names = [p.name for p in named if p.default is p.empty]
    if not names:
        raise ValueError("the criterion takes no statistics; its arguments must name what it needs, such as `weight`")
    if unknown := [name for name in names if name not in known]:
        raise ValueError(
            f"the criterion asks for {', '.join(unknown)}, but the statistics are {', '.join(known)}. Give a setting a "
            "default value, or pass a statistic of your own with statistics="
        )
    return names
