"""Layers that compute with their nonzero weights only, on the CPU, by direct sparse kernels in C."""

from .library import MissingKernelsWarning, has_kernels

__all__ = ["MissingKernelsWarning", "has_kernels"]
