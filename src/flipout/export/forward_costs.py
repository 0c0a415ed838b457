"""The costs of a forward pass: multiply-adds, and memory for activations."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode


@torch.no_grad()
def multiply_adds(network: nn.Module, inputs: tuple[Tensor, ...]) -> int:
    """Return the multiply-adds of all matrix products and convolutions of a forward pass, zeros included."""
    with FlopCounterMode(display=False) as counter:
        network(*inputs)
    return int(counter.get_total_flops()) // 2


@torch.no_grad()
def zero_multiply_adds(network: nn.Module, inputs: tuple[Tensor, ...]) -> int:
    """Return the multiply-adds of a forward pass that use a zero weight of a Linear or convolution layer."""
    total = 0

    def count(layer: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        nonlocal total
        weight: Any = layer.weight
        # Each weight is used once per output position, or per input position in a transposed convolution.
        positioned = given[0] if isinstance(layer, _ConvTransposeNd) else out
        channels = positioned.shape[-1] if isinstance(layer, nn.Linear) else positioned.shape[-weight.ndim + 1]
        total += (weight.numel() - int(weight.count_nonzero())) * (positioned.numel() // max(1, channels))

    layers = [layer for layer in network.modules() if isinstance(layer, (nn.Linear, _ConvNd))]
    handles = [layer.register_forward_hook(count) for layer in layers]
    try:
        network(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return total


class _MemoryCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
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
    counter = _MemoryCounter(weights)
    with counter:
        for tensor in copies:
            counter.watch(tensor.untyped_storage())
        network(*copies)
    return counter.peak
