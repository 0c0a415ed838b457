"""The kernels put to work on the layers of a pruner, as they stand or compiled."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from .. import kernels
from ..criteria import flip_saliency
from ..layers import Layer
from ..noise import GradientNoise, key
from ..statistics import Flips, Weight
from .compiler import compiled, failures

BLOCK = 1 << 18
"""Uncompiled, a large tensor goes block by block, so that what comes in between stays in the processor's cache."""


class Work:
    """What is done to each layer before a step, after it, and to score it."""

    def __init__(self, compile: bool) -> None:  # noqa: A002
        self._compile = compile
        self._rows: dict[tuple[int, bool], Rows] = {}
        self._scales: dict[tuple[float, torch.device], Tensor] = {}

    @property
    def compiled(self) -> bool:
        """Whether it was to be compiled, and could be."""
        return self._compile and not failures

    def before(self, layers: list[Layer], noise: GradientNoise | None, step: int, scaled_by: Tensor | float) -> None:
        """Masks the gradients, and adds noise to them; `scaled_by` is what a scaler has multiplied them with."""
        for layer in layers:
            for flips in flips_of(layer):
                flips.note(layer.weight)
            grad = layer.weight.grad
            if grad is None or not layer.weight.numel():
                continue
            if noise is not None and noise.scale:
                self._perturb(layer, grad, step, scaled_by, noise)
            elif not layer.dense:
                layer.clear(grad)

    def _perturb(self, layer: Layer, grad: Tensor, step: int, scaled_by: Tensor | float, noise: GradientNoise) -> None:
        rows, scale = self._rows_of(layer, grad.is_contiguous()), self._scale(noise, grad.device)
        if noise.relative_to == "weight":  # what is relative to the gradient is scaled already
            scale = scale * (scaled_by.to(grad.device) if isinstance(scaled_by, Tensor) else scaled_by)
        weight, mask, offsets, grad = rows.weight, rows.mask, rows.offsets, rows.like(grad)
        hashed = key("normal", noise.seed, step, layer.number)
        if self.compiled:
            run = compiled(kernels.perturb, *rows.kind, noise.relative_to)
            run(weight, grad, mask, offsets, *hashed, scale, noise.relative_to)
            return
        sigma = scale * kernels.deviation(weight, grad, mask, noise.relative_to)
        for block in rows.blocks:
            kernels.add_noise(grad[block], mask[block], offsets, *hashed, sigma, block.start)

    def after(self, layers: list[Layer]) -> None:
        """Counts flips, and brings the weights back under the masks."""
        for layer in layers:
            counts = flips_of(layer) if layer.weight.numel() else []
            for flips in counts:
                rows = self._rows_of(layer)
                self._count(rows, rows.weight, rows.mask, *map(rows.like, flips.planes))
                flips.seen(layer.weight)
            if not counts and not layer.dense:
                layer.zero()

    def _count(self, rows: Rows, *tensors: Tensor) -> None:
        if self.compiled:
            compiled(kernels.count_flips, *rows.kind)(*tensors)
            return
        for block in rows.blocks:
            kernels.count_flips(*(tensor[block] for tensor in tensors))

    def scores(self, layer: Layer, criterion: Callable[..., Tensor], values: Callable[[], dict[str, Tensor]]) -> Tensor:
        """What a criterion says of one layer: FlipOut's own in one loop if compiled, any other as it is written."""
        weight, flips = layer.trackers.get("weight"), layer.trackers.get("flips")
        ours = getattr(criterion, "func", None) is flip_saliency and type(weight) is Weight and type(flips) is Flips
        if not ours or not self.compiled or not layer.weight.numel():
            return criterion(**values())
        assert isinstance(flips, Flips)
        rows, p = self._rows_of(layer), repr(float(inspect.signature(criterion).parameters["p"].default))
        run = compiled(kernels.saliency, *rows.kind, p)
        scores: Tensor = run(rows.weight, *map(rows.like, flips.planes), p)
        return scores.view(layer.weight.shape)

    def zero(self, layer: Layer) -> None:
        """Zeroes what is pruned."""
        if self.compiled and layer.weight.numel():
            rows = self._rows_of(layer)
            compiled(kernels.zero, *rows.kind)(rows.weight, rows.mask)
        else:
            layer.zero()

    def run(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """For the elementwise work of a selection."""
        if not self.compiled:
            return function
        return lambda first, *others: compiled(function, first.dtype, min(len(first), 2))(first, *others)

    def _rows_of(self, layer: Layer, contiguous: bool = True) -> Rows:
        """Laid out once, and anew if the weight or its mask has moved."""
        rows = self._rows.get((layer.number, contiguous))
        if rows is None or not rows.still(layer):
            rows = self._rows[layer.number, contiguous] = lay_out(layer, contiguous)
        return rows

    def _scale(self, noise: GradientNoise, device: torch.device) -> Tensor:
        if (noise.scale, device) not in self._scales:
            self._scales[noise.scale, device] = torch.tensor(noise.scale, device=device)
        return self._scales[noise.scale, device]


@dataclass(eq=False)
class Rows:
    """A layer's weight and mask as matrices where memory allows it, so that one compiled loop serves every shape."""

    weight: Tensor
    mask: Tensor
    blocks: list[slice]
    """Ranges of rows with about `BLOCK` elements each."""
    kind: tuple[object, ...]
    """What a compiled loop is made for: torch makes other ones for sizes of 1."""

    def still(self, layer: Layer) -> bool:
        """Whether the layer's tensors are where they were."""
        weight, mask = layer.weight, layer.mask
        same = weight.data_ptr() == self.weight.data_ptr() and mask.data_ptr() == self.mask.data_ptr()
        return same and weight.dtype == self.weight.dtype

    @property
    def offsets(self) -> Tensor:
        """Numbers the elements of a row, that is of all that one index of the first dimension holds."""
        offsets = numbers(self.weight.shape[1:].numel(), self.weight.device)
        return offsets if self.weight.ndim == 2 else offsets.view(self.weight.shape[1:]).data

    def like(self, tensor: Tensor) -> Tensor:
        """Another tensor of the layer, laid out alike.

        It is no view in autograd's eyes: a compiler would want to know all about what it is a view of.
        """
        return tensor.data if tensor.ndim == self.weight.ndim else tensor.data.view(self.weight.shape).data


def lay_out(layer: Layer, contiguous: bool) -> Rows:
    weight, mask = layer.weight.data, layer.bytes.data
    if contiguous and weight.is_contiguous() and mask.is_contiguous():
        shape = (len(weight) if weight.ndim > 1 else 1, -1)
        weight, mask = weight.view(shape).data, mask.view(shape).data
    width, device = weight.shape[1:].numel(), weight.device
    step = max(1, BLOCK // width) if device.type == "cpu" else len(weight)
    return Rows(
        weight=weight,
        mask=mask,
        blocks=[slice(start, start + step) for start in range(0, len(weight), step)],
        kind=(weight.dtype, device.type, *(min(size, 2) for size in weight.shape)),
    )


@cache
def numbers(width: int, device: torch.device) -> Tensor:
    """From 0 on; all pruners of a process share them."""
    return torch.arange(width, dtype=torch.int32, device=device)


def flips_of(layer: Layer) -> list[Flips]:
    return [tracker for tracker in layer.trackers.values() if isinstance(tracker, Flips)]
