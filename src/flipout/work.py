"""The kernels put to work on the layers of a pruner, as they stand or compiled."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import Tensor

from . import kernels
from .compiling import compiled
from .criteria import flip_saliency
from .layers import Layer
from .noise import GradientNoise, keys
from .statistics import Flips

BLOCK = 1 << 18
"""Uncompiled, a large tensor goes block by block, so that what comes in between stays in the processor's cache."""


class Work:
    """What is done to each layer before a step, after it, and to score it."""

    def __init__(self, noise: GradientNoise | None, compile: bool) -> None:  # noqa: A002
        self.noise = noise if noise is not None and noise.scale else None
        self.compiled = compile
        self._offsets: dict[tuple[torch.device, int], Tensor] = {}

    def before(self, layers: list[Layer], step: int, scaled_by: Tensor | float) -> None:
        """Masks the gradients, and adds noise to them; `scaled_by` is what a scaler has multiplied them with."""
        for layer in layers:
            for flips in _flips(layer):
                flips.note(layer.weight)
        if self.noise is None:
            for layer in layers:
                if layer.weight.grad is not None and not layer.dense:
                    layer.clear(layer.weight.grad)
            return
        scale = torch.tensor(self.noise.scale)
        if self.noise.relative_to == "weight":  # what is relative to the gradient is scaled already
            scale = scale * scaled_by
        rows = keys("normal", self.noise.seed, step, [layer.number for layer in layers])
        for layer, key in zip(layers, rows, strict=True):
            if layer.weight.grad is not None and layer.weight.numel():
                device = layer.weight.device
                self._perturb(layer, layer.weight.grad, key.data.to(device), scale.to(device), self.noise.relative_to)

    def _perturb(self, layer: Layer, grad: Tensor, key: Tensor, scale: Tensor, relative_to: str) -> None:
        weight, grad, mask = rows_of(layer.weight, grad, layer.bytes)
        offsets = self._numbers(weight)
        if self.compiled:
            run = compiled(kernels.perturb, weight.dtype, weight.ndim, weight.device.type, relative_to)
            run(weight, grad, mask, offsets, key, scale, relative_to)
            return
        sigma = scale * kernels.deviation(weight, grad, mask, relative_to)
        for block in blocks(weight):
            kernels.add_noise(grad[block], mask[block], offsets, key, sigma, block.start)

    def after(self, layers: list[Layer]) -> None:
        """Counts flips, and brings the weights back under the masks."""
        for layer in layers:
            counts = _flips(layer) if layer.weight.numel() else []
            for flips in counts:
                self._count(*rows_of(layer.weight, layer.bytes, *flips.planes))
                flips.seen(layer.weight)
            if not counts and not layer.dense:
                layer.zero()

    def _count(self, weight: Tensor, *others: Tensor) -> None:
        if self.compiled:
            compiled(kernels.count_flips, weight.dtype, weight.ndim, weight.device.type)(weight, *others)
            return
        for block in blocks(weight):
            kernels.count_flips(weight[block], *(other[block] for other in others))

    def scores(self, layer: Layer, criterion: Callable[..., Tensor], values: Callable[[], dict[str, Tensor]]) -> Tensor:
        """What a criterion says of one layer: FlipOut's own in one loop if compiled, any other as it is written."""
        flips = layer.trackers.get("flips")
        if not self.compiled or type(flips) is not Flips or getattr(criterion, "func", None) is not flip_saliency:
            return criterion(**values())
        weight, low, high = rows_of(layer.weight, *flips.planes)
        run = compiled(kernels.saliency, weight.dtype, weight.ndim, weight.device.type)
        scores: Tensor = run(weight, low, high, repr(inspect.signature(criterion).parameters["p"].default))
        return scores.view(layer.weight.shape)

    def _numbers(self, weight: Tensor) -> Tensor:
        """Numbers the elements that one index of the first dimension holds."""
        width = weight.shape[1:].numel()
        key = weight.device, width
        if key not in self._offsets:
            self._offsets[key] = torch.arange(width, dtype=torch.int32, device=weight.device)
        return self._offsets[key].view(weight.shape[1:])


def _flips(layer: Layer) -> list[Flips]:
    return [tracker for tracker in layer.trackers.values() if isinstance(tracker, Flips)]


def rows_of(*tensors: Tensor) -> list[Tensor]:
    """Tensors of one shape as matrices where memory allows it, so that one compiled loop serves every shape.

    They are no views in autograd's eyes: a compiler would want to know all about what they are views of.
    """
    if all(tensor.is_contiguous() for tensor in tensors):
        rows = tensors[0].shape[0] if tensors[0].ndim > 1 else 1
        return [tensor.data.view(rows, -1).data for tensor in tensors]
    return [tensor.data for tensor in tensors]


def blocks(weight: Tensor) -> list[slice]:
    """Ranges of rows that hold about `BLOCK` elements each; all rows at once on a GPU."""
    rows = len(weight)
    step = max(1, BLOCK // weight.shape[1:].numel()) if weight.device.type == "cpu" else rows
    return [slice(start, start + step) for start in range(0, rows, step)]
