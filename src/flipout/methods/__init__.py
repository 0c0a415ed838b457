"""The methods, each `(model, optimizer, *, sparsity, steps, ...)` and a `Pruner`."""

from collections.abc import Callable

from ..pruner import Pruner
from .deep_r import DeepR
from .gradual import Dense, FlipOut, GlobalMagnitude, KeepZeros, MagnitudeUncertainty, Random
from .hoyer import HoyerSquare
from .lottery import Lottery
from .snip import SNIP

METHODS: dict[str, Callable[..., Pruner]] = {
    "flipout": FlipOut,
    "magnitude": GlobalMagnitude,
    "random": Random,
    "snip": SNIP,
    "hoyer-square": HoyerSquare,
    "magnitude-uncertainty": MagnitudeUncertainty,
    "deep-r": DeepR,
    "lottery": Lottery,
    "dense": Dense,
    "keep-zeros": KeepZeros,
}
