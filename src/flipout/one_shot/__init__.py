"""One-shot pruning: a trained network is pruned with calibration batches in place of a training run."""

from .pruning import prune
from .recalibration import recalibrate
from .report import PrunedLayer, PruneReport

__all__ = ["PruneReport", "PrunedLayer", "prune", "recalibrate"]
