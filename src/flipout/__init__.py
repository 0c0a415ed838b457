"""Pruning in one training run: attach a pruner to a model and its optimizer, train, and end with exactly the sparsity
asked for."""

from . import criteria, export
from .aim import AimTest
from .methods import METHODS
from .methods.deep_r import DeepR
from .methods.gradual import Dense, FlipOut, GlobalMagnitude, KeepZeros, MagnitudeUncertainty, Random
from .methods.hoyer import HoyerSquare
from .methods.lottery import Lottery
from .methods.snip import SNIP
from .noise import GradientNoise
from .progress import DeadLayerWarning, DivergenceWarning, NotCompiledWarning, UnfinishedWarning
from .pruner import Pruner
from .schedules import Cubic, Geometric, OneShot, Schedule
from .statistics import Statistic

__version__ = "0.2.0"

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
    "Lottery",
    "MagnitudeUncertainty",
    "NotCompiledWarning",
    "OneShot",
    "Pruner",
    "Random",
    "Schedule",
    "Statistic",
    "UnfinishedWarning",
    "criteria",
    "export",
]
