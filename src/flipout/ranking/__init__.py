"""Ranking: the exact k smallest scores over any number of tensors, without sorting or concatenating them."""

from .dead_first import choose_dead_first
from .quotas import apportion, choose, read_floor
from .ranking import numbers_of_smallest, smallest

__all__ = ["apportion", "choose", "choose_dead_first", "numbers_of_smallest", "read_floor", "smallest"]
