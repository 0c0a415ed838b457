"""Views: which elements of an original weight tensor are here: all of them, a shard, or what is left after a cut."""

from .positions import Positions
from .view import View, on_any_rank, whole

__all__ = ["Positions", "View", "on_any_rank", "whole"]
