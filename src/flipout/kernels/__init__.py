"""Layers that compute with their nonzero weights only, on the CPU, by direct sparse kernels in C."""

from .library import MissingKernelsWarning, has_kernels
from .sparse_kernels import SparseKernels, SparseKernelsWarning

__all__ = ["MissingKernelsWarning", "SparseKernels", "SparseKernelsWarning", "has_kernels"]
