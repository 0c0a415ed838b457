"""Up to which density a layer is faster with sparse kernels: measured once on a machine for each kind of layer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from .machine_memory import remembered
from .sparse_convolution import convolve, convolve_backward
from .sparse_function import dense_weight_gradient
from .sparse_modules import Seen
from .sparse_pattern import SparsePattern

DENSITIES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)
"""The densities of a table. Few of them, so that two measurements are likely to agree."""
MARGIN = 0.9
"""A sparse layer must take less than this share of the time of the dense one."""
IMAGES = 8
"""The most images of a measurement, for each thread."""
REPETITIONS = 2


class SpeedTable:
    """For each kind of layer the highest density at which it is faster with sparse kernels; 0 if it never is.

    Args:
        densities: what a state says. What it does not know is what this machine remembers, or is measured.
    """

    def __init__(self, densities: Mapping[str, float] | None = None) -> None:
        self.densities = dict(densities or {})

    def measure(self, seen: Seen, *, all_gradients: bool) -> str:
        """Find a kind of layer, or measure it; return its key."""
        key = key_of(seen, all_gradients=all_gradients)
        if key not in self.densities:
            self.densities[key] = remembered(key, lambda: highest_density(seen, all_gradients=all_gradients))
        return key


def key_of(seen: Seen, *, all_gradients: bool) -> str:
    """Everything that the speed of a layer depends on, as text."""
    each = seen.convolution
    sides = (each.channels, each.image, each.kernel, each.stride, each.before, each.after, each.dilation)
    flags = ("input gradient" * seen.gradient, "channels last" * seen.channels_last, "all gradients" * all_gradients)
    numbers = " ".join(f"{first}x{second}" for first, second in sides)
    threads = f"{torch.get_num_threads()} threads"
    return ", ".join((numbers, f"{_images(seen)} images", threads, *filter(None, flags)))


def _images(seen: Seen) -> int:
    return min(seen.images, IMAGES * torch.get_num_threads())


def highest_density(seen: Seen, *, all_gradients: bool) -> float:
    """The highest density of the table at which a training step of a layer is faster with sparse kernels."""
    if not seen.convolution.is_possible:
        return 0.0
    trial = Trial(seen, all_gradients=all_gradients)
    low, high = 0, len(DENSITIES)  # the number of densities that are fast enough
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if trial.is_faster(DENSITIES[middle]) else (low, middle)
    return DENSITIES[low - 1] if low else 0.0


class Trial:
    """A layer with random weights and images, forward and backward, dense and sparse."""

    def __init__(self, seen: Seen, *, all_gradients: bool) -> None:
        self.seen, self.convolution, self.all_gradients = seen, seen.convolution, all_gradients
        self.generator = torch.Generator().manual_seed(0)
        images = _images(seen)
        inputs, outputs = self.convolution.channels
        with torch.no_grad():
            self.images = self._random(images, inputs, *self.convolution.image)
            self.gradient = self._random(images, outputs, *self.convolution.out)
            self.weight = self._random(outputs, inputs, *self.convolution.kernel)

    def is_faster(self, density: float) -> bool:
        """Whether the sparse layer of this density is faster than the dense one."""
        kept = torch.rand(self.weight.shape, generator=self.generator) < density
        pattern = SparsePattern(kept)
        pattern.indices(self.convolution)
        dense, sparse = [], []
        with torch.no_grad():
            for _ in range(1 + REPETITIONS):
                dense.append(_seconds(self.run_dense))
                sparse.append(_seconds(lambda: self.run_sparse(pattern)))
        return min(sparse[1:]) < MARGIN * min(dense[1:])

    def run_dense(self) -> None:
        each = self.convolution
        images, padding = each.padded(self.images)
        sizes = each.stride, padding, each.dilation
        functional.conv2d(images, self.weight, None, *sizes)
        mask = [self.seen.gradient, True, False]
        torch.ops.aten.convolution_backward(self.gradient, images, self.weight, None, *sizes, False, [0, 0], 1, mask)

    def run_sparse(self, pattern: SparsePattern) -> None:
        values = pattern.values(self.weight)
        assert values is not None
        convolve(self.images, pattern, values, self.convolution)
        convolve_backward(
            *(self.gradient, self.images, pattern, values, self.convolution),
            of_images=self.seen.gradient,
            of_weight=not self.all_gradients,
        )
        if self.all_gradients:
            dense_weight_gradient(self.gradient, self.images, self.weight, self.convolution)

    def _random(self, *shape: int) -> Tensor:
        tensor = torch.randn(shape, generator=self.generator)
        return tensor.contiguous(memory_format=torch.channels_last) if self.seen.channels_last else tensor


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
