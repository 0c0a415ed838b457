"""Prune PyTorch models in one training run: attach a pruner to a model and its optimizer, train, and end with exactly
the sparsity you asked for."""

from . import criteria, export, integrations
from .aim import AimTest
from .events import Event, Selection
from .methods import (
    LAMP,
    METHODS,
    SNIP,
    DeepR,
    Dense,
    Fisher,
    FlipOut,
    GlobalMagnitude,
    GraNet,
    HoyerSquare,
    KeepZeros,
    LoopNeeds,
    Lottery,
    MagnitudeUncertainty,
    Method,
    PaperFlipOut,
    Random,
    RelativeMagnitude,
    RigL,
    register,
)
from .pruner import Pruner
from .revival import Revival
from .runtime.noise import GradientNoise
from .schedules import Constant, Cubic, Geometric, OneShot, Schedule
from .statistics import Statistic
from .warnings import (
    ChangedLengthWarning,
    ChannelWarning,
    CoverageWarning,
    DeadFirstWarning,
    DeadLayerWarning,
    DivergenceWarning,
    ForgottenStateWarning,
    KeepZerosWarning,
    LongRevivalWarning,
    LostZerosWarning,
    NotCompiledWarning,
    NotShrunkWarning,
    StaleMasksWarning,
    UnfinishedWarning,
)

__version__ = "0.3.0.dev0"

__all__ = [
    "LAMP",
    "METHODS",
    "SNIP",
    "AimTest",
    "ChangedLengthWarning",
    "ChannelWarning",
    "Constant",
    "CoverageWarning",
    "Cubic",
    "DeadFirstWarning",
    "DeadLayerWarning",
    "DeepR",
    "Dense",
    "DivergenceWarning",
    "Event",
    "Fisher",
    "FlipOut",
    "ForgottenStateWarning",
    "Geometric",
    "GlobalMagnitude",
    "GraNet",
    "GradientNoise",
    "HoyerSquare",
    "KeepZeros",
    "KeepZerosWarning",
    "LongRevivalWarning",
    "LoopNeeds",
    "LostZerosWarning",
    "Lottery",
    "MagnitudeUncertainty",
    "Method",
    "NotCompiledWarning",
    "NotShrunkWarning",
    "OneShot",
    "PaperFlipOut",
    "Pruner",
    "Random",
    "RelativeMagnitude",
    "Revival",
    "RigL",
    "Schedule",
    "Selection",
    "StaleMasksWarning",
    "Statistic",
    "UnfinishedWarning",
    "criteria",
    "export",
    "integrations",
    "register",
]
