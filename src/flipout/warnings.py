"""The warnings of this package."""

from __future__ import annotations


class DeadLayerWarning(UserWarning):
    """A layer has lost its last weight, so nothing passes through it."""


class DeadFirstWarning(UserWarning):
    """`dead_first` has no effect, because the network cannot be analysed."""


class ChannelWarning(UserWarning):
    """Some layers cannot be followed, so no channel of theirs is pruned."""


class UnfinishedWarning(UserWarning):
    """A pruner was removed or dropped before its schedule was finished."""


class DivergenceWarning(UserWarning):
    """The noise is too large to train with."""


class LongRevivalWarning(UserWarning):
    """Pruned weights may come back for so long after the last pruning that the network may collapse."""


class NotCompiledWarning(UserWarning):
    """`torch.compile` failed. The code runs in eager mode: the same results, more slowly."""


class NotShrunkWarning(UserWarning):
    """A shrink seemed worth while, but the network cannot be shrunk. The training continues without."""


class LostZerosWarning(UserWarning):
    """Pruned weights of the model are not zero: something other than the optimizer's step has changed them."""


class ForgottenStateWarning(UserWarning):
    """A pruner starts on a network that is mostly zeros already, and no state was loaded."""


class StaleMasksWarning(UserWarning):
    """Weights were pruned when the pruner was attached, and other weights were loaded before the first step."""


class KeepZerosWarning(UserWarning):
    """`KeepZeros` leaves some tensors alone, because their zeros are initial values."""


class CoverageWarning(UserWarning):
    """A pruner covers less than half of the matrix weights of a model."""


class ChangedLengthWarning(UserWarning):
    """A training is resumed with another number of steps than pruning was planned for."""
