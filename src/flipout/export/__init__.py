"""What comes after pruning: networks that are really smaller and really faster, and the measurements that say so."""

from ..graph.live_paths import Effective, effective
from .compaction import compact
from .formats.onnx_file import to_onnx
from .formats.pt2_file import to_pt2
from .model_card import Card, card
from .sparse_file.index import SparseFileError
from .sparse_file.saving import load, save
from .speed.acceleration import Accelerated, Choice, accelerate

__all__ = [
    "Accelerated",
    "Card",
    "Choice",
    "Effective",
    "SparseFileError",
    "accelerate",
    "card",
    "compact",
    "effective",
    "load",
    "save",
    "to_onnx",
    "to_pt2",
]
