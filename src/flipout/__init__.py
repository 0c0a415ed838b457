"""Pruning in one training run: attach a pruner to a model and its optimizer, train, and end with exactly the sparsity
asked for."""

from . import criteria, export
from .aim import AimTest
from .methods import (
    METHODS,
    SNIP,
    DeepR,
    Dense,
    FlipOut,
    GlobalMagnitude,
    HoyerSquare,
    KeepZeros,
    LoopNeeds,
    Lottery,
    MagnitudeUncertainty,
    Method,
    Random,
    register,
)
from .noise import GradientNoise
from .progress import DeadLayerWarning, DivergenceWarning, NotCompiledWarning, UnfinishedWarning
from .pruner import Pruner
from .schedules import Cubic, Geometric, OneShot, Schedule
from .statistics import Statistic

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "SNIP",
    "AimTest",
    "Cubic",
    "DeadLayerWarning",
    "DeepR",
    "Dense",
    "DivergenceWarning",
    "FlipOut",
    "Geometric",
    "GlobalMagnitude",
    "GradientNoise",
    "HoyerSquare",
    "KeepZeros",
    "LoopNeeds",
    "Lottery",
    "MagnitudeUncertainty",
    "Method",
    "NotCompiledWarning",
    "OneShot",
    "Pruner",
    "Random",
    "Schedule",
    "Statistic",
    "UnfinishedWarning",
    "criteria",
    "export",
    "register",
]
