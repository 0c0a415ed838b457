"""Statistics: what is tracked of each weight tensor for the criteria. Only what a criterion asks for is tracked."""

from .base import Place, Statistic
from .flips import Flips
from .gradients import FullGradient, FullSquaredGradient, Gradient, SquaredGradient
from .inverse_fisher import InverseFisher
from .values import Deviation, FanIn, Uniform, Value

STATISTICS: dict[str, type[Statistic]] = {
    "weight": Value,
    "grad": Gradient,
    "full_grad": FullGradient,
    "flips": Flips,
    "std": Deviation,
    "fisher": SquaredGradient,
    "inverse_fisher": InverseFisher,
    "fan_in": FanIn,
    "uniform": Uniform,
}
"""The statistics that a criterion can ask for by argument name."""

__all__ = [
    "STATISTICS",
    "Deviation",
    "FanIn",
    "Flips",
    "FullGradient",
    "FullSquaredGradient",
    "Gradient",
    "InverseFisher",
    "Place",
    "SquaredGradient",
    "Statistic",
    "Uniform",
    "Value",
]
