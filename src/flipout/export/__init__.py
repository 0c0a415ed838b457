"""What comes after pruning: networks that are really smaller and really faster, and the measurements that say so."""

from .compact import compact
from .effective import Effective, effective
from .sparse_file import SparseFileError, load, save

__all__ = ["Effective", "SparseFileError", "compact", "effective", "load", "save"]
