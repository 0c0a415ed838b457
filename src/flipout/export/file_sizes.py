"""The sizes of a network's files, and sizes as text."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from .sparse_file.writing import save


def dense_file_bytes(model: nn.Module) -> int:
    """Return the size of a plain safetensors file with the network's state; tied tensors count once."""
    seen: dict[object, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict().items():
        seen.setdefault((tensor.data_ptr(), tensor.shape) if tensor.numel() else name, (name, tensor))
    return len(to_safetensors({name: tensor.cpu().contiguous().clone() for name, tensor in seen.values()}))


def sparse_file_bytes(model: nn.Module) -> int:
    """Return the size of a sparse file with the network's state."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.safetensors"
        save(model, path)
        return path.stat().st_size


def format_bytes(size: int) -> str:
    """Return a number of bytes as text, in B, kB, MB or GB."""
    power = min(int(math.log(max(size, 1), 1000)), 3)
    return f"{size:,} B" if power == 0 else f"{size / 1000**power:,.1f} {('kB', 'MB', 'GB')[power - 1]}"
