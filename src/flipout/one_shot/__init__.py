"""One-shot pruning: a trained network is pruned with calibration batches in place of a training run."""

from .layer_sensitivity import Sensitivity, sensitivity
from .pruning import prune
from .recalibration import recalibrate
from .report import PrunedLayer, PruneReport

__all__ = ["PruneReport", "PrunedLayer", "Sensitivity", "prune", "recalibrate", "sensitivity"]
