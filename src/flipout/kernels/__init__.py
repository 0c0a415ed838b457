"""Layers that compute with their nonzero weights only, on the CPU, by direct sparse kernels in C.

`sparse_kernels=True` of a pruner uses them in training, and `flipout.export.accelerate` in inference.
"""

from .library import MissingKernelsWarning, has_kernels
from .saved_kernels import read_saved
from .sparse_kernels import (
    DenseLayers,
    SparseKernels,
    SparseKernelsChoice,
    SparseKernelsWarning,
    as_sparse_kernels,
)

__all__ = [
    "DenseLayers",
    "MissingKernelsWarning",
    "SparseKernels",
    "SparseKernelsChoice",
    "SparseKernelsWarning",
    "as_sparse_kernels",
    "has_kernels",
    "read_saved",
]
