"""Selection: the exact k smallest scores over any number of tensors, without sorting or concatenating them."""

from .quotas import apportion, choose, read_floor
from .ranking import NotFiniteError, smallest

__all__ = ["NotFiniteError", "apportion", "choose", "read_floor", "smallest"]
