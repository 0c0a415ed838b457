"""Train the pruned layers of a model with sparse kernels."""

from __future__ import annotations

import copy
import warnings
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .batch_norms import BatchNormComputation
from .coupling import PrunerLike, is_compiled, prunable_layers, unwrapped_model
from .library import find_kernels, has_kernels
from .saved_kernels import SavedKernels, read_saved
from .sparse_modules import NORM_CLASSES, SparseComputation, can_be_sparse, exchange_class, give_class_back
from .sparse_pattern import SparsePattern
from .speed_table import SpeedTable

SparseKernelsChoice = bool | Literal["auto"]
"""Whether layers compute with sparse kernels: no, yes, or where that is possible without a warning."""


class SparseKernelsWarning(UserWarning):
    """Layers compute densely although they are sparse enough, for a reason that the message gives."""


def as_sparse_kernels(choice: SparseKernelsChoice) -> DenseLayers:
    """What computes the layers of a pruner, as the user chose it."""
    if choice not in (True, False, "auto"):
        raise ValueError(f"sparse_kernels is {choice!r}; give True, False or 'auto'")
    return SparseKernels(quiet=choice == "auto") if choice else DenseLayers()


class DenseLayers:
    """Layers compute as torch does: the choice for a pruner without sparse kernels."""

    @property
    def layers(self) -> list[str]:
        """The names of the weights whose layers compute with sparse kernels at the moment."""
        return []

    def attach(self, pruner: PrunerLike) -> None:
        """Begin to follow the masks of a pruner."""

    def update(self) -> None:
        """Follow the masks: called after each step, and when the network was made smaller or larger."""

    def remove(self) -> None:
        """Give all layers their own classes back."""

    def saved(self) -> str:
        """What a state says about sparse kernels; see `SavedKernels`."""
        return ""

    def load(self, text: str) -> None:
        """Continue with what a state says. Masks and weights are loaded before."""


@dataclass(eq=False)
class SwitchedLayer:
    """A layer and what it computes with."""

    module: nn.Module
    computation: SparseComputation
    mask: Tensor | None = None
    """The mask that the computation was decided for, a copy of it, and the number of changes it had then."""
    copy: Tensor | None = None
    version: int = -1

    def has_other(self, mask: Tensor) -> bool:
        """Whether a mask is not the one that the computation was decided for."""
        if mask is self.mask and mask._version == self.version:  # as in most steps; a comparison takes longer
            return False
        self.mask, self.version = mask, mask._version
        return self.copy is None or not torch.equal(self.copy, mask)


class SparseKernels(DenseLayers):
    """Compute the layers that a pruner has pruned with sparse kernels, while they train: `sparse_kernels=True`.

    The class of each Linear, Conv1d and Conv2d module with a pruned weight is exchanged for a subclass of it. The
    modules stay the same objects, with the same parameters, `state_dict` and hooks. After the first step, the densities
    up to which sparse kernels are faster are looked up for the sizes that the layers were called with, and measured
    where this machine has not done so before. When the mask of a layer changes, it becomes sparse or dense by that
    table, which is part of the state of the pruner.

    While a layer is sparse, BatchNorm1d and BatchNorm2d modules compute with kernels too: torch's own are slow in the
    order of numbers that sparse layers have.

    The gradient of a pruned weight is exactly 0 in a sparse layer. While the pruner reads the gradients of pruned
    weights, they are computed densely.

    Args:
        quiet: do not warn where layers have to compute densely.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.table = SpeedTable()
        self._quiet = quiet
        self._keys: dict[str, tuple[str, str]] = {}  # see `SavedKernels`
        self._reasons: set[str] = set()
        self._layers: dict[str, SwitchedLayer] = {}
        self._norms: list[nn.Module] = []
        self._norm = BatchNormComputation()
        self._all_gradients: bool | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> SparseKernels:
        """The copy decides the same. It is attached to the copy of the pruner."""
        new = SparseKernels(quiet=self._quiet)
        new.table, new._keys, new._reasons = copy.deepcopy(self.table, memo), dict(self._keys), set(self._reasons)
        return new

    @property
    def layers(self) -> list[str]:
        return [name for name, layer in self._layers.items() if layer.computation.pattern is not None]

    def attach(self, pruner: PrunerLike) -> None:
        self._pruner = weakref.ref(pruner)  # a strong one would let the modules of the model keep the pruner
        if find_kernels() is None if self._quiet else not has_kernels():
            return
        if is_compiled(pruner.model):
            self._report("the model is compiled by torch.compile")
            return
        for name, module in prunable_layers(pruner).items():
            if can_be_sparse(module):
                computation = SparseComputation(self._report)
                exchange_class(module, computation)
                self._layers[name] = SwitchedLayer(module, computation)
        if self._layers:
            self._norms = [module for module in unwrapped_model(pruner.model).modules() if type(module) in NORM_CLASSES]
        for module in self._norms:
            exchange_class(module, self._norm)
        self._give_back = weakref.finalize(pruner, _make_all_dense, self._layers.values(), self._norms)
        self._give_back.atexit = False
        self.update()

    @torch.no_grad()
    def update(self) -> None:
        if not self._layers or (pruner := self._pruner()) is None:
            return
        self._measure(pruner)
        masks, all_gradients = pruner.masks, pruner.learns_pruned
        for name, layer in self._layers.items():
            layer.computation.all_gradients = all_gradients
            mask = masks[name]
            if name in self._keys and (all_gradients != self._all_gradients or layer.has_other(mask)):
                self._decide(layer, mask, self._keys[name][all_gradients])
        self._all_gradients = all_gradients
        self._norm.active = any(layer.computation.pattern is not None for layer in self._layers.values())

    def remove(self) -> None:
        if self._layers:
            self._give_back()
        self._layers, self._norms = {}, []

    def saved(self) -> str:
        return SavedKernels(self.table.densities, self._keys).as_text()

    def load(self, text: str) -> None:
        densities, keys = read_saved(text)
        self.table, self._keys = SpeedTable(densities), dict(keys)
        for layer in self._layers.values():
            layer.mask = layer.copy = layer.computation.pattern = None
        self.update()

    def __repr__(self) -> str:
        return f"SparseKernels({len(self.layers)} of {len(self._layers)} layers are sparse)"

    def _measure(self, pruner: PrunerLike) -> None:
        """Measure the layers that were called for the first time: usually all of them, in the first step."""
        if pruner.finished and not pruner.sparsity:
            return  # nothing is pruned, and nothing will be
        for name, layer in self._layers.items():
            if name not in self._keys and (seen := layer.computation.seen) is not None:
                kept = self.table.measure(seen, all_gradients=False)
                # A pruner that reads all gradients may stop to do so, but no other begins to.
                every = self.table.measure(seen, all_gradients=True) if pruner.learns_pruned else kept
                self._keys[name] = kept, every

    def _decide(self, layer: SwitchedLayer, mask: Tensor, key: str) -> None:
        kept = int(mask.count_nonzero())
        is_worth_it = kept <= self.table.densities[key] * mask.numel()
        layer.copy = mask.clone()
        layer.computation.pattern = SparsePattern(mask) if is_worth_it else None

    def _report(self, reason: str) -> None:
        """Say once why layers compute densely."""
        if reason not in self._reasons and not self._quiet:
            self._reasons.add(reason)
            warnings.warn(f"layers compute densely: {reason}", SparseKernelsWarning, stacklevel=2)


def _make_all_dense(layers: Iterable[SwitchedLayer], norms: Iterable[nn.Module]) -> None:
    for layer in layers:
        layer.computation.pattern = None
        give_class_back(layer.module)
    for norm in norms:
        give_class_back(norm)
