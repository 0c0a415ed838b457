"""Statistics: what is tracked of each weight tensor for the criteria. Only what a criterion asks for is tracked."""

from .base import Place, Statistic
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
    "uniform": Uniform,
}
"""The statistics that a criterion can ask for by argument name."""

__all__ = ["STATISTICS", "Deviation", "Flips", "FullGradient", "Gradient", "Place", "Statistic", "Uniform", "Weight"]
