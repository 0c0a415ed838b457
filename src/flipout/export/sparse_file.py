"""Sparse files: a `state_dict` without its zeros, restored bit for bit. docs/export.md describes the layout.

Everything in a file is checked before it is used.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, deserialize
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from ..atomic_files import replacing
from ..channels.copies import quantized_entry
from ..modules import unwrapped
from .sparse_index import DTYPE_NAMES, SparseFileError, TensorEntry, decode, encode, parse_index

FORMAT, VERSION = "flipout-sparse", "1"
MAX_EXPANSION = 4096
"""By default, the tensors may take this many times the size of the file,"""
ALWAYS_ALLOWED_BYTES = 1 << 26
"""or this many bytes if that is more,"""
MAX_BYTES = 1 << 34
"""but never more than this."""
MAX_HEADER_BYTES = 100_000_000
"""The longest header that safetensors accepts."""
NOT_SAFETENSORS = "it is not a safetensors file, or it is damaged ({})"


def save(model: nn.Module | Mapping[str, Tensor], path: Path | str) -> None:
    """Write a model's state, or any `state_dict`, without its zeros. `load` restores it bit for bit.

    Each tensor is stored in the smallest of four codings: dense, as nonzero values with one bit per element, as nonzero
    values with the gaps between them, or, if all elements are zero, as nothing. Minus zero and NaN are not zeros. Tied
    tensors are stored once. An existing file is replaced atomically.

        >>> flipout.export.save(model, "net.safetensors")
    """
    content = sparse_bytes(model)
    with replacing(Path(path)) as temporary:
        temporary.write_bytes(content)


def sparse_bytes(model: nn.Module | Mapping[str, Tensor]) -> bytes:
    """Return the content of a sparse file."""
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
        entry, stored = encode(name, tensor.detach().cpu())
        _warn_about_minus_zeros(name, tensor.detach())
        entries.append(entry)
        parts += stored
    index = torch.frombuffer(bytearray(json.dumps(entries, separators=(",", ":")).encode()), dtype=torch.uint8)
    data = torch.cat([torch.empty(0, dtype=torch.uint8), *parts])
    metadata = {"format": FORMAT, "version": VERSION, "sha256": checksum(index, data)}
    return to_safetensors({"index": index, "data": data}, metadata)


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
            stacklevel=4,
        )


def load(path: Path | str, *, max_bytes: int | None = None) -> dict[str, Tensor]:
    """Read a sparse file: dense tensors on the CPU by name, equal bit for bit to those that were saved.

    A file that is invalid in any way raises a `SparseFileError`.

        >>> flipout.export.save(model, "net.safetensors")
        >>> model.load_state_dict(flipout.export.load("net.safetensors"))
        <All keys matched successfully>

    Args:
        path: the file.
        max_bytes: how much memory the tensors may take. The default is 64 MiB or 4,096 times the size of the file,
            whichever is more, but at most 16 GiB.
    """
    path = Path(path)
    if path.is_dir():
        raise SparseFileError(f"{path} is a folder: pass the path of a file in it")
    try:
        with path.open("rb") as file:  # opened only once, because another process may replace it
            index, data = _read(file)
            size = file.tell()
        limit = min(max(ALWAYS_ALLOWED_BYTES, MAX_EXPANSION * size), MAX_BYTES) if max_bytes is None else max_bytes
        entries = parse_index(raw_bytes(index))
        _check_sizes(entries, len(data), limit)
        return _decode(entries, data)
    except SparseFileError as error:
        raise SparseFileError(f"{path} cannot be loaded: {error}") from error


def _read(file: BinaryIO) -> tuple[Tensor, Tensor]:
    """Return the index and the data of a sparse file whose checksum is right."""
    metadata = _read_metadata(file)
    if metadata.get("format") != FORMAT:
        raise SparseFileError("it is not a sparse file; read plain files with safetensors.torch.load_file")
    if metadata.get("version") != VERSION:
        raise SparseFileError(
            f"it has version {metadata.get('version')!r} of the format, and this version of flipout reads "
            f"{VERSION!r}; use the version of flipout that wrote it"
        )
    file.seek(0)
    try:
        parts = dict(deserialize(file.read()))  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise SparseFileError(NOT_SAFETENSORS.format(error)) from error
    if sorted(parts) != ["data", "index"]:
        raise SparseFileError("it does not contain exactly an index and data")
    if any(part["dtype"] != "U8" or len(part["shape"]) != 1 for part in parts.values()):
        raise SparseFileError("its index and data are not bytes")
    index, data = (_as_tensor(parts[name]["data"]) for name in ("index", "data"))
    if checksum(index, data) != metadata.get("sha256"):
        raise SparseFileError("it is damaged: its checksum does not match its contents")
    return index, data


def _read_metadata(file: BinaryIO) -> dict[str, Any]:
    """Return the metadata from the header, so that a file of another format is refused before it is read as a whole.

    The header is checked only as much as this needs; safetensors checks all of it.
    """
    length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER_BYTES:
        raise SparseFileError(NOT_SAFETENSORS.format("its header is too long"))
    try:
        header = json.loads(file.read(length))
    except (ValueError, RecursionError) as error:
        raise SparseFileError(NOT_SAFETENSORS.format(f"its header is invalid: {error}")) from error
    metadata = header.get("__metadata__", {}) if isinstance(header, dict) else None
    if not isinstance(metadata, dict):
        raise SparseFileError(NOT_SAFETENSORS.format("its header has no valid metadata"))
    return metadata


def _as_tensor(stored: bytes | bytearray) -> Tensor:
    return torch.frombuffer(bytearray(stored), dtype=torch.uint8) if stored else torch.empty(0, dtype=torch.uint8)


def _check_sizes(entries: list[TensorEntry], stored: int, limit: int) -> None:
    """Check that the data have the size that the index says, and that the tensors do not take too much memory."""
    listed = sum(entry.stored_bytes for entry in entries)
    if listed != stored:
        raise SparseFileError(f"its index lists {listed:,} bytes of data, but it contains {stored:,}")
    needed = sum(entry.size * entry.dtype.itemsize for entry in entries)
    if needed > limit:
        raise SparseFileError(
            f"its tensors would take {needed:,} bytes, more than the {limit:,} allowed: if you trust the file, pass "
            f"max_bytes={needed}"
        )


def _decode(entries: list[TensorEntry], data: Tensor) -> dict[str, Tensor]:
    tensors: list[Tensor] = []
    start = 0
    for entry in entries:
        if entry.same is not None:
            tensors.append(tensors[entry.same])
            continue
        stored = data[start : start + entry.stored_bytes]
        start += entry.stored_bytes
        try:
            positions, values = stored[: entry.position_bytes], stored[entry.position_bytes :].clone()
            tensors.append(decode(entry, positions, values))
        except ValueError as error:
            raise SparseFileError(f"its tensor {entry.name!r} is damaged: {error}") from error
        except (MemoryError, RuntimeError) as error:
            raise SparseFileError(f"there is not enough memory for its tensor {entry.name!r} ({error})") from error
    return {entry.name: tensor for entry, tensor in zip(entries, tensors, strict=True)}


def checksum(index: Tensor, data: Tensor) -> str:
    """Return the SHA-256 of the index followed by the data."""
    return hashlib.sha256(raw_bytes(index) + raw_bytes(data)).hexdigest()


def raw_bytes(stored: Tensor) -> bytes:
    """Return a tensor of bytes as `bytes`."""
    return ctypes.string_at(stored.data_ptr(), len(stored)) if len(stored) else b""
