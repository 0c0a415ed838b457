"""Granularity: what is pruned as one unit. A criterion scores single weights and knows nothing of it."""

from .granularity_setting import Granularity, GranularityChoice, Reduction, as_granularity
from .unit_choice import UnitChoice
from .units_for_layers import units_for

__all__ = ["Granularity", "GranularityChoice", "Reduction", "UnitChoice", "as_granularity", "units_for"]
