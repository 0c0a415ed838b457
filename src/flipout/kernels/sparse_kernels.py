"""Train the pruned layers of a model with sparse kernels."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .coupling import PrunerLike, is_compiled, prunable_layers
from .library import has_kernels
from .sparse_modules import SparseComputation, can_be_sparse, make_dense, make_sparse
from .sparse_pattern import SparsePattern
from .speed_table import SpeedTable


class SparseKernelsWarning(UserWarning):
    """Layers compute densely although they are sparse enough, for a reason that the message gives."""


@dataclass(eq=False)
class SwitchedLayer:
    """A layer, what it computes with, and which kind of layer it is in the table."""

    module: nn.Module
    computation: SparseComputation
    mask: Tensor | None = None
    """The mask that the computation was decided for, a copy of it, and the number of changes it had then."""
    copy: Tensor | None = None
    version: int = -1
    keys: tuple[str, str] | None = None
    """The keys of the table: for gradients of the kept weights, and for all gradients."""

    def has_other(self, mask: Tensor) -> bool:
        """Whether a mask is not the one that the computation was decided for."""
        if mask is self.mask and mask._version == self.version:  # as in most steps; a comparison takes longer
            return False
        self.mask, self.version = mask, mask._version
        return self.copy is None or not torch.equal(self.copy, mask)


class SparseKernels:
    """Compute the layers that a pruner has pruned with sparse kernels, while they train.

    The class of each Linear, Conv1d and Conv2d module with a pruned weight is exchanged for a subclass of it. The
    modules stay the same objects, with the same parameters, `state_dict` and hooks. After the first step, the densities
    up to which sparse kernels are faster are measured for the sizes that the layers were called with. When the mask of
    a layer changes, it becomes sparse or dense by that table.

    The gradient of a pruned weight is exactly 0 in a sparse layer. While the pruner reads the gradients of pruned
    weights, they are computed densely.

    Args:
        pruner: the pruner; its masks decide.
        table: densities that were measured before, by kind of layer; they are not measured again.
    """

    def __init__(self, pruner: PrunerLike, *, table: Mapping[str, float] | None = None) -> None:
        self._pruner = weakref.ref(pruner)
        self.table = SpeedTable(table)
        self._reasons: set[str] = set()
        self._layers: dict[str, SwitchedLayer] = {}
        self._all_gradients: bool | None = None
        if not has_kernels():
            return
        if is_compiled(pruner.model):
            self._report("the model is compiled by torch.compile")
            return
        for name, module in prunable_layers(pruner).items():
            if can_be_sparse(module):
                computation = SparseComputation(self._report)
                make_sparse(module, computation)
                self._layers[name] = SwitchedLayer(module, computation)
        self._hook = pruner.optimizer.register_step_post_hook(self._after_step)

    @property
    def sparse_layers(self) -> list[str]:
        """The names of the weights whose layers compute with sparse kernels."""
        return [name for name, layer in self._layers.items() if layer.computation.pattern is not None]

    @torch.no_grad()
    def update(self) -> None:
        """Follow the masks of the pruner. It is called after each optimizer step."""
        pruner = self._pruner()
        if pruner is None:
            self.remove()
            return
        self._measure(pruner)
        masks, all_gradients = pruner.masks, pruner.learns_pruned
        for name, layer in self._layers.items():
            layer.computation.all_gradients = all_gradients
            mask = masks[name]
            if layer.keys is not None and (all_gradients != self._all_gradients or layer.has_other(mask)):
                self._decide(layer, mask, layer.keys[all_gradients])
        self._all_gradients = all_gradients

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Give all layers their own classes back for a while: for code that asks for the class of a layer, or that
        changes the sizes of weights, such as `pruner.shrink`."""
        for layer in self._layers.values():
            make_dense(layer.module)
        try:
            yield
        finally:
            for layer in self._layers.values():
                make_sparse(layer.module, layer.computation)
            self.update()

    def remove(self) -> None:
        """Give all layers their own classes back."""
        for layer in self._layers.values():
            make_dense(layer.module)
        if self._layers:
            self._hook.remove()
        self._layers = {}

    def state_dict(self) -> dict[str, Any]:
        """The measured table, and the kind of each layer: a training that is resumed with them decides the same."""
        return {
            "densities": dict(self.table.densities),
            "keys": {name: layer.keys for name, layer in self._layers.items() if layer.keys is not None},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with a saved state. The state of the pruner must be loaded before."""
        self.table = SpeedTable(state["densities"])
        for name, layer in self._layers.items():
            keys = state["keys"].get(name)
            layer.keys, layer.mask, layer.copy = None if keys is None else (keys[0], keys[1]), None, None
        self.update()

    def __repr__(self) -> str:
        return f"SparseKernels({len(self.sparse_layers)} of {len(self._layers)} layers are sparse)"

    def _measure(self, pruner: PrunerLike) -> None:
        """Measure the layers that were called for the first time: usually all of them, in the first step."""
        for layer in self._layers.values():
            if layer.keys is None and (seen := layer.computation.seen) is not None:
                kept = self.table.measure(seen, all_gradients=False)
                # A pruner that reads all gradients may stop to do so, but no other begins to.
                every = self.table.measure(seen, all_gradients=True) if pruner.learns_pruned else kept
                layer.keys = kept, every

    def _decide(self, layer: SwitchedLayer, mask: Tensor, key: str) -> None:
        kept = int(mask.count_nonzero())
        is_worth_it = kept <= self.table.densities[key] * mask.numel()
        layer.copy = mask.clone()
        layer.computation.pattern = SparsePattern(mask) if is_worth_it else None

    def _after_step(self, *_: Any) -> None:
        self.update()

    def _report(self, reason: str) -> None:
        """Say once why layers compute densely."""
        if reason not in self._reasons:
            self._reasons.add(reason)
            warnings.warn(f"layers compute densely: {reason}", SparseKernelsWarning, stacklevel=2)
