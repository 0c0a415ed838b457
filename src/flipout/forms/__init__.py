"""Forms: what the optimizer trains, and what the network computes with."""

from .compensation import Compensation
from .form import Form
from .gates import HardConcrete
from .hidden import Hidden
from .latent import Latent
from .second_chances import SecondChances, as_second_chances
from .signs import FixedSigns
from .thresholds import Thresholds
from .variational import VariationalDropoutForm

__all__ = [
    "Compensation",
    "FixedSigns",
    "Form",
    "HardConcrete",
    "Hidden",
    "Latent",
    "SecondChances",
    "Thresholds",
    "VariationalDropoutForm",
    "as_second_chances",
]
