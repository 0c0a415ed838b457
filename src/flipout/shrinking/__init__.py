"""Shrinking: channels that influence nothing are removed from the network that is being trained."""

from .shrinker import Shrinker
from .state import Shrink

__all__ = ["Shrink", "Shrinker"]
