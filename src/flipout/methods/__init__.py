"""The methods. Each is a `Pruner` that takes `(model, optimizer, *, sparsity, steps, ...)` and is in `METHODS`."""

from .gradual import Dense, FlipOut, GlobalMagnitude, KeepZeros, MagnitudeUncertainty, Random

# isort: split
# Methods are listed in the order of these imports, FlipOut first.
from .deep_r import DeepR
from .hoyer import HoyerSquare
from .lottery import Lottery
from .registry import METHODS, LoopNeeds, Method, register
from .snip import SNIP

__all__ = [
    "METHODS",
    "SNIP",
    "DeepR",
    "Dense",
    "FlipOut",
    "GlobalMagnitude",
    "HoyerSquare",
    "KeepZeros",
    "LoopNeeds",
    "Lottery",
    "MagnitudeUncertainty",
    "Method",
    "Random",
    "register",
]
