"""Sparse files: every tensor of a `state_dict`, its zeros left out, bit for bit. docs/export.md has the layout."""

from __future__ import annotations

import ctypes
import hashlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from ...atomic_files import replacing
from ...layers import unwrapped
from .index import NAMES, Entry, SparseFileError, parse
from .positions_coding import best_low, decode_gaps, encode_gaps, gap_bytes, mask_bytes, pack, unpack

FORMAT, VERSION = "flipout-sparse", "1"
EXPANSION, FLOOR, CEILING = 4096, 1 << 26, 1 << 34
"""A file may grow by this factor when it is loaded, to this many bytes in any case, and to no more than this many."""


def save(model: nn.Module | Mapping[str, Tensor], path: Path | str) -> None:
    """Writes a model's state, or any `state_dict`, without its zeros. `load` gives back every bit of it.

    Each tensor is stored in the cheapest of four ways: as it is, as its nonzero values with a bit for each element, as
    its nonzero values with the gaps between them, or, if it is all zeros, not at all. Minus zero and NaN are not zeros.
    Tied tensors are stored once. What was at `path` is replaced in one go.
    """
    state = unwrapped(model).state_dict() if isinstance(model, nn.Module) else model
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
        _warn_of_minus_zeros(name, tensor.detach())
        entries.append(entry)
        parts += stored
    index = torch.frombuffer(bytearray(json.dumps(entries, separators=(",", ":")).encode()), dtype=torch.uint8)
    data = torch.cat([torch.empty(0, dtype=torch.uint8), *parts])
    metadata = {"format": FORMAT, "version": VERSION, "sha256": _digest(index, data)}
    with replacing(Path(path)) as temporary:
        temporary.write_bytes(to_safetensors({"index": index, "data": data}, metadata))


def load(path: Path | str, *, max_bytes: int | None = None) -> dict[str, Tensor]:
    """Reads a sparse file: dense tensors on the CPU under the names they were saved with, equal in every bit.

    Everything is checked before it is believed, and a file that is wrong in any way gives a `SparseFileError`.

    Args:
        path: the file.
        max_bytes: how much memory its tensors may take; without it, 64 MiB or 4,096 times the file, whichever is more,
            but at most 16 GiB.
    """
    path = Path(path)
    if path.is_dir():
        raise SparseFileError(f"{path} is a folder: name the file in it")
    size = path.stat().st_size
    most = min(max(FLOOR, EXPANSION * size), CEILING) if max_bytes is None else max_bytes
    try:
        index, data = _read(path)
        entries = parse(_raw(index))
        _check_sizes(entries, len(data), most)
        return _decode(entries, data)
    except SparseFileError as error:
        raise SparseFileError(f"{path} cannot be loaded: {error}") from error


def _check(name: object, tensor: object) -> None:
    if not isinstance(name, str) or not isinstance(tensor, Tensor):
        raise TypeError(f"{name!r} is a {type(tensor).__name__}; a sparse file holds tensors under names: leave it out")
    if tensor.layout != torch.strided or tensor.dtype not in NAMES or tensor.is_meta:
        raise TypeError(
            f"{name} is a tensor of {tensor.dtype}, {tensor.layout} on {tensor.device}, which a sparse file cannot "
            "hold: make it a dense one first"
        )


def _warn_of_minus_zeros(name: str, tensor: Tensor) -> None:
    """A mask that was multiplied with leaves them, and each takes as much as a weight."""
    if tensor.dtype not in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        return
    signed = int(((tensor == 0) & tensor.signbit()).sum())
    if signed > max(100, int(tensor.count_nonzero())):
        warnings.warn(
            f"{signed:,} zeros of {name} have a minus sign, and are kept to the bit like any other value: if that is "
            f"not what you want, save {name} + 0, which has plain zeros",
            stacklevel=3,
        )


def _words(tensor: Tensor) -> Tensor:
    """The bits of a tensor's elements as integers, a row for each."""
    size = tensor.dtype.itemsize
    word = {1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(size, torch.int64)
    return _bytes(tensor).view(word).view(tensor.numel(), size // word.itemsize)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8)


def _encode(name: str, tensor: Tensor) -> tuple[list[object], list[Tensor]]:
    """An entry of the index, and what is stored."""
    words, size = _words(tensor), tensor.numel()
    kept = (words != 0).any(1)
    count = int(kept.sum())
    low = best_low(size, count)
    width = tensor.dtype.itemsize
    costs = {
        "dense": size * width,
        "mask": mask_bytes(size) + count * width,
        "gaps": gap_bytes(size, count, low) + count * width,
    }
    coding = min(costs, key=lambda each: costs[each]) if count else "zeros"
    entry: list[object] = [name, NAMES[tensor.dtype], list(tensor.shape), coding]
    if coding == "zeros":
        return entry, []
    if coding == "dense":
        return entry, [_bytes(tensor)]
    values = words[kept].flatten().view(torch.uint8)
    if coding == "mask":
        return [*entry, count], [pack(kept), values]
    return [*entry, count, low], [encode_gaps(kept.nonzero().flatten(), size, low), values]


def _digest(index: Tensor, data: Tensor) -> str:
    return hashlib.sha256(_raw(index) + _raw(data)).hexdigest()


def _raw(stored: Tensor) -> bytes:
    return ctypes.string_at(stored.data_ptr(), len(stored)) if len(stored) else b""


def _read(path: Path) -> tuple[Tensor, Tensor]:
    """The index and the data of a file that is ours and whole."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise SparseFileError("it is not a sparse file; safetensors.torch.load_file reads plain ones")
            if metadata.get("version") != VERSION:
                raise SparseFileError(
                    f"it has version {metadata.get('version')!r} of the format, and this flipout reads {VERSION!r}; "
                    "take the flipout that wrote it"
                )
            if sorted(file.keys()) != ["data", "index"]:
                raise SparseFileError("it does not hold an index and data, and nothing else")
            index, data = (file.get_tensor(name).clone() for name in ("index", "data"))
    except SafetensorError as error:
        raise SparseFileError(f"it is not a safetensors file, or damaged ({error})") from error
    if any(part.dtype != torch.uint8 or part.ndim != 1 for part in (index, data)):
        raise SparseFileError("its index and data are not bytes")
    if _digest(index, data) != metadata.get("sha256"):
        raise SparseFileError("it is damaged: its checksum is not that of its contents")
    return index, data


def _check_sizes(entries: list[Entry], stored: int, most: int) -> None:
    """What is announced must be what is stored, and fit into memory."""
    announced = sum(entry.bytes for entry in entries)
    if announced != stored:
        raise SparseFileError(f"its index tells of {announced:,} bytes of data, and there are {stored:,}")
    needed = sum(entry.size * entry.dtype.itemsize for entry in entries)
    if needed > most:
        raise SparseFileError(
            f"its tensors would take {needed:,} bytes, more than the {most:,} allowed: if you trust the file, give "
            f"max_bytes={needed}"
        )


def _decode(entries: list[Entry], data: Tensor) -> dict[str, Tensor]:
    tensors: list[Tensor] = []
    start = 0
    for entry in entries:
        if entry.same is not None:
            tensors.append(tensors[entry.same])
            continue
        stored = data[start : start + entry.bytes]
        start += entry.bytes
        try:
            tensors.append(_tensor(entry, stored[: entry.positions], stored[entry.positions :].clone()))
        except ValueError as error:
            raise SparseFileError(f"its tensor {entry.name!r} is damaged: {error}") from error
        except (MemoryError, RuntimeError) as error:
            raise SparseFileError(f"there is not enough memory for its tensor {entry.name!r} ({error})") from error
    return {entry.name: tensor for entry, tensor in zip(entries, tensors, strict=True)}


def _tensor(entry: Entry, positions: Tensor, values: Tensor) -> Tensor:
    """A dense tensor from where its values belong, and the values."""
    if entry.dtype == torch.bool and values.numel() and int(values.max()) > 1:
        raise ValueError("a boolean is neither 0 nor 1")
    if entry.coding == "dense":
        return values.view(entry.dtype).view(entry.shape)
    tensor = torch.zeros(entry.size * entry.dtype.itemsize, dtype=torch.uint8).view(entry.dtype).view(entry.shape)
    if entry.coding == "zeros":
        return tensor
    if entry.coding == "mask":
        where = unpack(positions, entry.size).nonzero().flatten()
    else:
        where = decode_gaps(positions, entry.size, entry.count, entry.low)
    if len(where) != entry.count:
        raise ValueError(f"{len(where):,} elements are marked, where {entry.count:,} are announced")
    words = _words(tensor)
    words[where] = values.view(words.dtype).view(entry.count, words.shape[1])
    return tensor
