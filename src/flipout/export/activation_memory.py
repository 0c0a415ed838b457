"""Measure the memory that the activations of a forward pass take."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class MemoryCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the memory of all tensors that are created while it is active and still exist."""

    def __init__(self, ignored: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counted, self.now, self.peak = ignored, 0, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.layout == torch.strided:
                self.watch(tensor.untyped_storage())
        return result

    def watch(self, storage: torch.UntypedStorage) -> None:
        """Count a storage until it is freed."""
        key, size = storage._cdata, storage.nbytes()
        if key in self.counted:
            return

        def freed() -> None:
            self.counted.discard(key)
            self.now -= size

        self.counted.add(key)
        weakref.finalize(storage, freed)
        self.now += size
        self.peak = max(self.peak, self.now)


@torch.no_grad()
def peak_activation_bytes(network: nn.Module, inputs: tuple[Tensor, ...]) -> int:
    """Return the most bytes that the inputs and all tensors computed from them take at one time in a forward pass.

    Weights and the temporary memory inside an operation do not count.
    """
    weights = {tensor.untyped_storage()._cdata for tensor in (*network.parameters(), *network.buffers())}
    copies = tuple(tensor.clone() for tensor in inputs)
    counter = MemoryCounter(weights)
    with counter:
        for tensor in copies:
            counter.watch(tensor.untyped_storage())
        network(*copies)
    return counter.peak
