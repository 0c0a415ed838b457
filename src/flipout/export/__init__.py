"""What comes after pruning: networks that are really smaller and really faster, and the measurements that say so."""

from .accelerate import Accelerated, Choice, accelerate
from .card import Card, card
from .compact import compact
from .effective import Effective, effective
from .sparse_file import load, save
from .sparse_index import SparseFileError
from .to_onnx import to_onnx
from .to_pt2 import to_pt2

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
