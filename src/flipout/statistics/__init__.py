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

CALIBRATED = {
    "input_norm": "the root of the mean square of the input that a weight multiplies",
    "hessian_diagonal": "the second derivative of the squared error of the layer's outputs",
}
"""The statistics that `flipout.prune` computes from calibration batches. There are none of them in training."""

__all__ = [
    "CALIBRATED",
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
