"""Guards: replaced weights, a first step on the wrong weights, lost zeros, ranks that differ."""

from .base import Guard
from .first_step import AtOnce, FirstStep
from .ownership import Ownership
from .ranks import Ranks
from .zeros import Zeros, complaint, count_lost_zeros, warn_at_the_end, warn_of_lost_zeros

__all__ = [
    "AtOnce",
    "FirstStep",
    "Guard",
    "Ownership",
    "Ranks",
    "Zeros",
    "complaint",
    "count_lost_zeros",
    "warn_at_the_end",
    "warn_of_lost_zeros",
]
