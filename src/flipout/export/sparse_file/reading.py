"""Read sparse files. Everything in a file is checked before it is used."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .file_index import SparseFileError, TensorEntry, parse_index
from .file_layout import FORMAT, VERSION, as_words, checksum, raw_bytes
from .positions_coding import decode_gaps, unpack

MAX_EXPANSION = 4096
"""By default, the tensors may take this many times the size of the file,"""
ALWAYS_ALLOWED_BYTES = 1 << 26
"""or this many bytes if that is more,"""
MAX_BYTES = 1 << 34
"""but never more than this."""


def load(path: Path | str, *, max_bytes: int | None = None) -> dict[str, Tensor]:
    """Read a sparse file: dense tensors on the CPU by name, equal bit for bit to those that were saved.

    A file that is invalid in any way raises a `SparseFileError`.

    Args:
        path: the file.
        max_bytes: how much memory the tensors may take. The default is 64 MiB or 4,096 times the size of the file,
            whichever is more, but at most 16 GiB.
    """
    path = Path(path)
    if path.is_dir():
        raise SparseFileError(f"{path} is a folder: pass the path of a file in it")
    size = path.stat().st_size
    limit = min(max(ALWAYS_ALLOWED_BYTES, MAX_EXPANSION * size), MAX_BYTES) if max_bytes is None else max_bytes
    try:
        index, data = _read(path)
        entries = parse_index(raw_bytes(index))
        _check_sizes(entries, len(data), limit)
        return _decode(entries, data)
    except SparseFileError as error:
        raise SparseFileError(f"{path} cannot be loaded: {error}") from error


def _read(path: Path) -> tuple[Tensor, Tensor]:
    """Return the index and the data of a sparse file whose checksum is right."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise SparseFileError("it is not a sparse file; read plain files with safetensors.torch.load_file")
            if metadata.get("version") != VERSION:
                raise SparseFileError(
                    f"it has version {metadata.get('version')!r} of the format, and this version of flipout reads "
                    f"{VERSION!r}; use the version of flipout that wrote it"
                )
            if sorted(file.keys()) != ["data", "index"]:
                raise SparseFileError("it does not contain exactly an index and data")
            index, data = (file.get_tensor(name).clone() for name in ("index", "data"))
    except SafetensorError as error:
        raise SparseFileError(f"it is not a safetensors file, or it is damaged ({error})") from error
    if any(part.dtype != torch.uint8 or part.ndim != 1 for part in (index, data)):
        raise SparseFileError("its index and data are not bytes")
    if checksum(index, data) != metadata.get("sha256"):
        raise SparseFileError("it is damaged: its checksum does not match its contents")
    return index, data


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
            tensors.append(_decode_tensor(entry, positions, values))
        except ValueError as error:
            raise SparseFileError(f"its tensor {entry.name!r} is damaged: {error}") from error
        except (MemoryError, RuntimeError) as error:
            raise SparseFileError(f"there is not enough memory for its tensor {entry.name!r} ({error})") from error
    return {entry.name: tensor for entry, tensor in zip(entries, tensors, strict=True)}


def _decode_tensor(entry: TensorEntry, positions: Tensor, values: Tensor) -> Tensor:
    """Return a dense tensor, given the bytes of the positions of its values and of the values."""
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
        raise ValueError(f"{len(where):,} elements are marked, but the index lists {entry.count:,}")
    words = as_words(tensor)
    words[where] = values.view(words.dtype).view(entry.count, words.shape[1])
    return tensor
