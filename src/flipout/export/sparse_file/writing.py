"""Write sparse files."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from ...atomic_files import replacing
from ...graph.copies import quantized_entry
from ...modules import unwrapped
from .file_index import DTYPE_NAMES
from .file_layout import FORMAT, VERSION, as_byte_tensor, as_words, checksum
from .positions_coding import best_low, encode_gaps, gap_bytes, mask_bytes, pack


def save(model: nn.Module | Mapping[str, Tensor], path: Path | str) -> None:
    """Write a model's state, or any `state_dict`, without its zeros. `load` restores it bit for bit.

    Each tensor is stored in the smallest of four codings: dense, as nonzero values with one bit per element, as nonzero
    values with the gaps between them, or, if all elements are zero, as nothing. Minus zero and NaN are not zeros. Tied
    tensors are stored once. An existing file is replaced atomically.
    """
    state = unwrapped(model).state_dict() if isinstance(model, nn.Module) else model
    if (name := quantized_entry(state)) is not None:
        raise TypeError(f"{name} is quantized, and a sparse file holds only plain tensors: export before quantizing")
    seen: dict[tuple[object, ...], int] = {}
    entries: list[list[object]] = []
    parts: list[Tensor] = []
    for number, (name, tensor) in enumerate(state.items()):
        _check(name, tensor)
        identity = (
            *(tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device),
            *(tensor.is_conj(), tensor.is_neg()),
        )
        if tensor.numel() and identity in seen:
            entries.append([name, seen[identity]])
            continue
        seen[identity] = number
        entry, stored = _encode(name, tensor.detach().cpu())
        _warn_about_minus_zeros(name, tensor.detach())
        entries.append(entry)
        parts += stored
    index = torch.frombuffer(bytearray(json.dumps(entries, separators=(",", ":")).encode()), dtype=torch.uint8)
    data = torch.cat([torch.empty(0, dtype=torch.uint8), *parts])
    metadata = {"format": FORMAT, "version": VERSION, "sha256": checksum(index, data)}
    with replacing(Path(path)) as temporary:
        temporary.write_bytes(to_safetensors({"index": index, "data": data}, metadata))


def _check(name: object, tensor: object) -> None:
    if not isinstance(name, str) or not isinstance(tensor, Tensor):
        raise TypeError(f"{name!r} is a {type(tensor).__name__}; a sparse file holds only named tensors: leave it out")
    if tensor.layout != torch.strided or tensor.dtype not in DTYPE_NAMES or tensor.is_meta:
        raise TypeError(
            f"{name} is a tensor of {tensor.dtype}, {tensor.layout} on {tensor.device}, which a sparse file cannot "
            "hold: convert it to a dense tensor first"
        )


def _warn_about_minus_zeros(name: str, tensor: Tensor) -> None:
    """Warn if many zeros have a minus sign, as after multiplication with a mask: each is stored like a weight."""
    if tensor.dtype not in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        return
    signed = int(((tensor == 0) & tensor.signbit()).sum())
    if signed > max(100, int(tensor.count_nonzero())):
        warnings.warn(
            f"{signed:,} zeros of {name} have a minus sign and are stored like any other value: to store plain zeros "
            f"instead, save {name} + 0",
            stacklevel=3,
        )


def _encode(name: str, tensor: Tensor) -> tuple[list[object], list[Tensor]]:
    """Return an entry of the index, and the parts of the data that belong to it."""
    words, size = as_words(tensor), tensor.numel()
    nonzero = (words != 0).any(1)
    count = int(nonzero.sum())
    low = best_low(size, count)
    width = tensor.dtype.itemsize
    costs = {
        "dense": size * width,
        "mask": mask_bytes(size) + count * width,
        "gaps": gap_bytes(size, count, low) + count * width,
    }
    coding = min(costs, key=lambda each: costs[each]) if count else "zeros"
    entry: list[object] = [name, DTYPE_NAMES[tensor.dtype], list(tensor.shape), coding]
    if coding == "zeros":
        return entry, []
    if coding == "dense":
        return entry, [as_byte_tensor(tensor)]
    values = words[nonzero].flatten().view(torch.uint8)
    if coding == "mask":
        return [*entry, count], [pack(nonzero), values]
    return [*entry, count, low], [encode_gaps(nonzero.nonzero().flatten(), size, low), values]
