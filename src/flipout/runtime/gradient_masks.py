"""Gradients are masked as the backward pass accumulates them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from ..layers import Layer
from ..shards.local_tensors import has_layout_of, local_of
from .compiler import never_traced


class GradientMasks:
    """Zero the gradient of each pruned weight as soon as the backward pass has accumulated it.

    Parked weights, which no backward pass reaches, get their gradient of 0 at the same time.

    So gradient clipping, logging and everything else between `backward()` and `optimizer.step()` sees the gradients
    that the optimizer uses. Under data parallelism this happens before the ranks exchange their gradients: the masks
    are equal on all ranks, so the averages are masked too.

    A layer with a statistic that needs the unmasked gradient is left out: its gradient is masked inside the step. So is
    a layer with hidden values, which learn from the gradient of pruned weights.

    Args:
        layers: the layers of a pruner.
        finished: whether the last pruning is done. It must not keep the pruner alive.
    """

    def __init__(self, layers: Sequence[Layer], finished: Callable[[], bool]) -> None:
        handles = [
            layer.weight.register_post_accumulate_grad_hook(_mask_gradient_of(layer, finished))  # type: ignore[no-untyped-call]
            for layer in layers
        ]
        self._finalizer = weakref.finalize(self, _remove, handles)  # a dropped pruner leaves no hooks in the model

    def remove(self) -> None:
        self._finalizer()


def _mask_gradient_of(layer: Layer, finished: Callable[[], bool]) -> Callable[[Tensor], None]:
    """The hook of a layer. It must not keep the layer alive, because the weight may outlive the pruner."""
    reference = weakref.ref(layer)
    asking = [statistic for statistic in layer.statistics.values() if statistic.gradient == "unmasked"]
    always, until_finished = any(not statistic.only_for_prunings for statistic in asking), bool(asking)
    del asking  # the weight may outlive them, too

    @never_traced
    def mask_gradient(weight: Tensor) -> None:
        layer, grad = reference(), weight.grad
        if layer is not None and layer.parked is not None and layer.parked.weight.grad is None:
            layer.parked.weight.grad = torch.zeros_like(layer.parked.weight)
        if layer is None or layer.dense or layer.hidden is not None or grad is None or grad.layout != torch.strided:
            return  # (a sparse gradient is refused inside the step)
        if always or (until_finished and not finished()):
            return
        if not has_layout_of(weight, grad):
            return  # it is brought into the layout of the weight inside the step
        with torch.no_grad():
            layer.clear(local_of(grad))

    return mask_gradient


def _remove(handles: Iterable[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
