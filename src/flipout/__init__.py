"""Prune PyTorch models in one training run: attach a pruner to a model and its optimizer, train, and end with exactly
the sparsity you asked for."""

from . import criteria, export
from .aim import AimTest
from .events import Event, Selection
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
from .pruner import Pruner
from .runtime.noise import GradientNoise
from .schedules import Constant, Cubic, Geometric, OneShot, Schedule
from .statistics import Statistic
from .warnings import (
    ChangedLengthWarning,
    CoverageWarning,
    DeadLayerWarning,
    DivergenceWarning,
    ForgottenStateWarning,
    KeepZerosWarning,
    LostZerosWarning,
    NotCompiledWarning,
    StaleMasksWarning,
    UnfinishedWarning,
)

__version__ = "0.2.0"

__all__ = [
    "METHODS",
    "SNIP",
    "AimTest",
    "ChangedLengthWarning",
    "Constant",
    "CoverageWarning",
    "Cubic",
    "DeadLayerWarning",
    "DeepR",
    "Dense",
    "DivergenceWarning",
    "Event",
    "FlipOut",
    "ForgottenStateWarning",
    "Geometric",
    "GlobalMagnitude",
    "GradientNoise",
    "HoyerSquare",
    "KeepZeros",
    "KeepZerosWarning",
    "LoopNeeds",
    "LostZerosWarning",
    "Lottery",
    "MagnitudeUncertainty",
    "Method",
    "NotCompiledWarning",
    "OneShot",
    "Pruner",
    "Random",
    "Schedule",
    "Selection",
    "StaleMasksWarning",
    "Statistic",
    "UnfinishedWarning",
    "criteria",
    "export",
    "register",
]
