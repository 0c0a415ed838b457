"""What can go wrong: the warnings of this package, and what cannot be combined, in one table."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from typing import Literal


class DeadLayerWarning(UserWarning):
    """Layers have lost their last weight, so nothing passes through them."""


class DeadFirstWarning(UserWarning):
    """`dead_first` has no effect, because the network cannot be analysed."""


class ChannelWarning(UserWarning):
    """The channels of some layers cannot be followed through the network, so they are not pruned."""


class UnfinishedWarning(UserWarning):
    """A pruner was removed or dropped before its schedule was finished."""


class DivergenceWarning(UserWarning):
    """The noise is too large to train with."""


class NoSampleWarning(UserWarning):
    """A method that puts noise into weights trained without it, because no call of the modules was seen."""


class NotCompiledWarning(UserWarning):
    """`torch.compile` failed. The code runs in eager mode: the same results, more slowly."""


class NotShrunkWarning(UserWarning):
    """A shrink seemed worth while, but the network cannot be shrunk. Training continues without shrinking."""


class LostGradientsWarning(UserWarning):
    """Something learns from the gradients of pruned weights, but these gradients do not reach the optimizer step."""


class LostZerosWarning(UserWarning):
    """Pruned weights of the model are not zero: something other than the optimizer's step has changed them."""


class ForgottenStateWarning(UserWarning):
    """A pruner starts on a network that is mostly zeros already, and no state was loaded."""


class StaleMasksWarning(UserWarning):
    """Weights were pruned when the pruner was attached, and other weights were loaded before the first step."""


class KeepZerosWarning(UserWarning):
    """`KeepZeros` leaves some tensors alone, because their zeros are initial values."""


class CoverageWarning(UserWarning):
    """A pruner leaves out weights, because a parametrization computes them or their inputs cannot be observed, or it
    covers less than half of the matrix weights of a model."""


class ChangedLengthWarning(UserWarning):
    """A training is resumed with another number of steps than pruning was planned for."""


class NotFiniteError(ValueError):
    """A score is NaN or infinite; `tensor` is the number of its tensor."""

    def __init__(self, tensor: int) -> None:
        super().__init__(f"a score of tensor {tensor} is NaN or infinite")
        self.tensor = tensor


def warn(message: str, category: type[Warning], place: tuple[str, int] | None = None) -> None:
    """Warn at a line of a file: by default the one outside this package that called it."""
    file, line = place or users_line()
    warnings.warn_explicit(message, category, file, line)


def users_line() -> tuple[str, int]:
    """The line of the user's code that called this package, directly or through torch."""
    frame, ours = sys._getframe(), (__package__, "torch")
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ours:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


# What cannot be combined.

Need = Literal[
    "whole weights",  # the method reads whole weight tensors while it prunes
    "whole network",  # the method needs every weight until the end of training
    "own choice",  # the method chooses single weights in its own way
    "own form",  # the method decides what happens to pruned weights, or to gradients
    "own prune",  # the method carries out an event in its own way
    "own events",  # the method does something of an event in its own way, so it may read weights that are removed
    "own records",  # the method records events in its own way
    "pruned gradients",  # something needs the gradients of pruned weights until the last pruning
    "pruned gradients always",  # and after it
    "whole scores",  # a score may depend on other weights than its own
    "whole units",  # units would be cut apart
    "single weights",  # single weights are ranked
]
"""What a method, a criterion, a statistic or units need. `Pruner.needs` gives the reason for each."""

Capability = Literal["shards", "units", "second chances", "shrinking"]

INCOMPATIBLE: dict[tuple[Need, Capability], str] = {
    ("whole weights", "shards"): "Use another method, or train with DistributedDataParallel",
    ("own choice", "units"): (
        "Use a method that prunes by a criterion, such as FlipOut or GlobalMagnitude, or granularity='weight'"
    ),
    ("single weights", "units"): "Leave dead_first= out",
    ("own choice", "second chances"): "Leave second_chances= out, or use a method that prunes by a criterion",
    ("own prune", "second chances"): "Leave second_chances= out, or use a method that prunes by a criterion",
    ("own prune", "shrinking"): "Wait until pruner.finished",
    ("own form", "second chances"): "Leave second_chances= out, or use a method that prunes by a criterion",
    ("whole network", "shrinking"): "Train without shrinking",
    ("own form", "shrinking"): "Train without shrinking",
    ("own choice", "shrinking"): "Wait until pruner.finished",
    ("own events", "shrinking"): "Wait until pruner.finished",
    ("own records", "shrinking"): "Wait until pruner.finished",
    ("pruned gradients", "shrinking"): "Wait until pruner.finished",
    ("pruned gradients always", "shrinking"): (
        "If only prunings read the statistic, declare that with `only_for_prunings = True` in its class, and wait "
        "until pruner.finished"
    ),
    ("whole scores", "shrinking"): (
        "If each score depends on its own weight alone, declare that with @flipout.criteria.elementwise; otherwise "
        "wait until pruner.finished"
    ),
    ("whole units", "shrinking"): "Wait until pruner.finished",
}
"""For each need and each capability that it is incompatible with: what to do."""

OVERRIDDEN: list[tuple[str, Need, str]] = [
    ("select", "own choice", "its own select() chooses single weights"),
    ("prune", "own prune", "its own prune() decides what happens to pruned weights"),
    ("keep", "own events", "its own keep() may use weights that are removed"),
    ("score", "own events", "its own score() may use weights that are removed"),
    ("record", "own records", "its own record() may use weights that are removed"),
    ("stepped", "whole network", "its own stepped() may use weights that are removed"),
    ("extra_state", "whole network", "its own extra_state() may hold weights that are removed"),
]
"""What a subclass of a pruner overrides, and what it needs for that reason."""

WHOLE_SCORES: dict[Need, str] = {"whole scores": "the scores of the criterion may depend on weights that are removed"}

ENDS_WITH_THE_LAST_PRUNING = frozenset[Need](
    {"own choice", "own prune", "own events", "own records", "pruned gradients", "whole scores", "whole units"}
)
"""Needs that no longer matter to shrinking when the last pruning is done."""


def incompatibility(
    needs: Mapping[Need, str], capability: Capability, who: str, what: str, *, finished: bool = False
) -> str | None:
    """Why something with these needs is incompatible with a capability, and what to do; None if it is not.

    Args:
        needs: the needs, each with its reason.
        capability: what it is combined with.
        who: the name of the method.
        what: how the user asked for the capability, such as `granularity='4x1'`.
        finished: whether the last pruning is done.
    """
    for need, why in needs.items():
        if finished and need in ENDS_WITH_THE_LAST_PRUNING:
            continue
        if (need, capability) in INCOMPATIBLE:
            return f"{who} is incompatible with {what}: {why}. {INCOMPATIBLE[need, capability]}"
    return None
