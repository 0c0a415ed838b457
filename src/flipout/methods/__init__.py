"""The methods. Each is a `Pruner` that takes `(model, optimizer, *, sparsity, steps, ...)` and is in `METHODS`."""

from .gradual import (
    LAMP,
    Fisher,
    FlipOut,
    GlobalMagnitude,
    Gradual,
    MagnitudeUncertainty,
    PaperFlipOut,
    Random,
    RelativeMagnitude,
)

# isort: split
# Methods are listed in the order of these imports, FlipOut first.
from .dense import Dense, KeepZeros

# isort: split
from .deep_r import DeepR
from .hoyer import HoyerSquare
from .latent import L0, DynamicSparseTraining, VariationalDropout
from .lottery import Lottery
from .obs import OptimalBrainSurgeon
from .registry import METHODS, LoopNeeds, Method, register
from .regrowth import GraNet, RigL
from .snip import SNIP

__all__ = [
    "L0",
    "LAMP",
    "METHODS",
    "SNIP",
    "DeepR",
    "Dense",
    "DynamicSparseTraining",
    "Fisher",
    "FlipOut",
    "GlobalMagnitude",
    "GraNet",
    "Gradual",
    "HoyerSquare",
    "KeepZeros",
    "LoopNeeds",
    "Lottery",
    "MagnitudeUncertainty",
    "Method",
    "OptimalBrainSurgeon",
    "PaperFlipOut",
    "Random",
    "RelativeMagnitude",
    "RigL",
    "VariationalDropout",
    "register",
]
