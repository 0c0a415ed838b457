"""Statistics: what is tracked of each weight tensor for the criteria. Only what a criterion asks for is tracked."""

from .base import Place, Statistic
from .fan_in import FanIn
from .fisher import FullSquaredGradient, SquaredGradient
from .flips import Flips
from .gradient import FullGradient, Gradient
from .moments import Deviation
from .uniform import Uniform
from .weight import Weight

STATISTICS: dict[str, type[Statistic]] = {
    "weight": Weight,
    "grad": Gradient,
    "full_grad": FullGradient,
    "flips": Flips,
    "std": Deviation,
    "fisher": SquaredGradient,
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
    "Place",
    "SquaredGradient",
    "Statistic",
    "Uniform",
    "Weight",
]
