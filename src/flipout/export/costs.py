"""What a network costs: multiply-adds, memory for activations, and the bytes of its files."""

from __future__ import annotations

import math
import tempfile
import weakref
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from .sparse_file.saving import save


@torch.no_grad()
def multiply_adds(network: nn.Module, inputs: tuple[Tensor, ...]) -> int:
    """Of every product and convolution of a forward pass, zeros included."""
    with FlopCounterMode(display=False) as counter:
        network(*inputs)
    return int(counter.get_total_flops()) // 2


@torch.no_grad()
def skipped_multiply_adds(network: nn.Module, inputs: tuple[Tensor, ...]) -> int:
    """Of a forward pass, those that a zero weight of a Linear or convolution takes part in."""
    skipped = 0

    def count(layer: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        nonlocal skipped
        weight: Any = layer.weight
        # Each weight works once for every place of the output, or of the input where that is the smaller one.
        placed = given[0] if isinstance(layer, _ConvTransposeNd) else out
        channels = placed.shape[-1] if isinstance(layer, nn.Linear) else placed.shape[-weight.ndim + 1]
        skipped += (weight.numel() - int(weight.count_nonzero())) * (placed.numel() // max(1, channels))

    layers = [layer for layer in network.modules() if isinstance(layer, (nn.Linear, _ConvNd))]
    handles = [layer.register_forward_hook(count) for layer in layers]
    try:
        network(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return skipped


class _Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the memory of all tensors that were made since, and are still there."""

    def __init__(self, kept: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept, self.now, self.peak = kept, 0, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.layout == torch.strided:
                self.watch(tensor.untyped_storage())
        return result

    def watch(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.kept:
            return

        def gone() -> None:
            self.kept.discard(key)
            self.now -= size

        self.kept.add(key)
        weakref.finalize(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)


@torch.no_grad()
def peak_activations(network: nn.Module, inputs: tuple[Tensor, ...]) -> int:
    """The most bytes that the inputs and all tensors made of them take at one time in a forward pass.

    Weights do not count, nor what an operation needs inside itself.
    """
    weights = {tensor.untyped_storage()._cdata for tensor in (*network.parameters(), *network.buffers())}
    fresh = tuple(tensor.clone() for tensor in inputs)
    live = _Live(weights)
    with live:
        for tensor in fresh:
            live.watch(tensor.untyped_storage())
        network(*fresh)
    return live.peak


def dense_bytes(model: nn.Module) -> int:
    """The size of a plain safetensors file of the state, tied tensors once."""
    seen: dict[object, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict().items():
        seen.setdefault((tensor.data_ptr(), tensor.shape) if tensor.numel() else name, (name, tensor))
    return len(to_safetensors({name: tensor.cpu().contiguous().clone() for name, tensor in seen.values()}))


def sparse_bytes(model: nn.Module) -> int:
    """The size of a sparse file of the state."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.safetensors"
        save(model, path)
        return path.stat().st_size


def readable(size: int) -> str:
    """A number of bytes in a unit that fits."""
    power = min(int(math.log(max(size, 1), 1000)), 3)
    return f"{size:,} B" if power == 0 else f"{size / 1000**power:,.1f} {('kB', 'MB', 'GB')[power - 1]}"
