"""Forms: what the optimizer trains, and what the network computes with."""

from .form import Form
from .hidden import Hidden, SecondChances, as_second_chances
from .signs import FixedSigns

__all__ = ["FixedSigns", "Form", "Hidden", "SecondChances", "as_second_chances"]
