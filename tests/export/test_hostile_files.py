"""Forged or damaged sparse files: an error, never a crash or a huge allocation."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save as to_safetensors
from safetensors.torch import save_file
from torch import Tensor

from flipout.export.sparse_file import load, save
from flipout.export.sparse_index import DTYPES, SparseFileError, gap_bytes
from tests.export.test_sparse_file import assert_same


def write(path: Path, index: Any, data: bytes = b"", **metadata: str) -> None:
    """Write a file with any index and data, and a correct checksum."""
    text = index if isinstance(index, bytes) else json.dumps(index).encode()
    sha256 = hashlib.sha256(text + data).hexdigest()
    parts = {"index": text, "data": data}
    stored = {key: torch.tensor(list(part), dtype=torch.uint8) for key, part in parts.items()}
    path.write_bytes(to_safetensors(stored, {"format": "flipout-sparse", "version": "1", "sha256": sha256, **metadata}))


FORGED: dict[str, tuple[Any, bytes, str]] = {
    "no list": ({}, b"", "not a list"),
    "no JSON": (b"[[", b"", "not JSON"),
    "no text": (b"\xff\xfe", b"", "not JSON"),
    "too deep": (b"[" * 100_000, b"", "not JSON"),
    "endless number": (b'[["a","float32",[' + b"9" * 5000 + b'],"zeros"]]', b"", "not JSON"),
    "empty entry": ([[]], b"", "invalid entry"),
    "unknown type": ([["a", "float31", [1], "zeros"]], b"", "invalid entry"),
    "unknown coding": ([["a", "float32", [1], "zstd"]], b"", "invalid entry"),
    "negative side": ([["a", "float32", [-1], "zeros"]], b"", "invalid entry"),
    "two negative sides": ([["a", "float32", [-2, -2], "dense"]], bytes(16), "invalid entry"),
    "half a side": ([["a", "float32", [1.5], "zeros"]], b"", "invalid entry"),
    "true side": ([["a", "float32", [True], "dense"]], bytes(4), "invalid entry"),
    "sides that overflow": ([["a", "float32", [1 << 61, 1 << 61, 0], "zeros"]], b"", "invalid entry"),
    "sides without end": ([["a", "float32", [(1 << 62) - 1] * 20_000, "zeros"]], b"", "invalid entry"),
    "more axes than torch has": ([["a", "float32", [1] * 65, "zeros"]], b"", "invalid entry"),
    "too many values": ([["a", "float32", [2], "mask", 3]], bytes(13), "invalid entry"),
    "too many low bits": ([["a", "float32", [2], "gaps", 1, 41]], bytes(13), "invalid entry"),
    "tied to itself": ([["a", 0]], b"", "invalid entry"),
    "tied to a tied one": ([["a", "bool", [], "zeros"], ["b", 0], ["c", 1]], b"", "invalid entry"),
    "a name twice": ([["a", "bool", [], "zeros"], ["a", "bool", [], "zeros"]], b"", "twice"),
    "too little data": ([["a", "float32", [2], "dense"]], bytes(7), "8 bytes of data, but it contains 7"),
    "too much data": ([["a", "float32", [2], "dense"]], bytes(9), "8 bytes of data, but it contains 9"),
    "gigantic zeros": ([["a", "float32", [1 << 50], "zeros"]], b"", "max_bytes="),
    "many zeros": ([[f"{i}", "float32", [1 << 22], "zeros"] for i in range(5)], b"", "max_bytes="),
    "gigantic gaps": ([["a", "float32", [1 << 40], "gaps", 1, 40]], bytes([0] * 5 + [1] + [0] * 4), "max_bytes="),
    "fewer marks than values": ([["a", "uint8", [8], "mask", 2]], b"\x01ab", "1 elements are marked"),
    "marks after the end": ([["a", "uint8", [7], "mask", 1]], b"\x80a", "after the last one"),
    "fewer gaps than values": ([["a", "uint8", [8], "gaps", 2, 3]], b"\x00\x01ab", "1 positions are stored"),
    "a position after the end": ([["a", "uint8", [5], "gaps", 1, 3]], b"\x07\x01a", "exceed the number"),
    "positions that do not increase": ([["a", "uint8", [8], "gaps", 2, 3]], b"\x09\x03ab", "do not increase"),
    "no boolean": ([["a", "bool", [2], "dense"]], b"\x00\x02", "neither 0 nor 1"),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_forged_files(forgery: str, tmp_path: Path) -> None:
    index, data, message = FORGED[forgery]
    write(tmp_path / "forged", index, data)
    with pytest.raises(SparseFileError, match=message):
        load(tmp_path / "forged")


def test_a_forged_file_without_errors_is_loaded(tmp_path: Path) -> None:
    write(tmp_path / "right", [["a", "uint8", [8], "gaps", 2, 3], ["b", 0]], b"\x11\x03yz")
    assert bytes(load(tmp_path / "right")["b"].tolist()) == b"\0yz\0\0\0\0\0"


def test_other_files(tmp_path: Path) -> None:
    path = tmp_path / "net"
    with pytest.raises(FileNotFoundError):
        load(path)
    with pytest.raises(SparseFileError, match="folder"):
        load(tmp_path)
    save_file({"a": torch.ones(3)}, path)
    with pytest.raises(SparseFileError, match="not a sparse file"):
        load(path)
    write(path, [], version="2")
    with pytest.raises(SparseFileError, match="version '2'"):
        load(path)
    write(path, [], sha256="0")
    with pytest.raises(SparseFileError, match="checksum"):
        load(path)
    metadata = {"format": "flipout-sparse", "version": "1"}
    save_file({"index": torch.ones(3)}, path, metadata)
    with pytest.raises(SparseFileError, match="index"):
        load(path)
    save_file({"index": torch.ones(3), "data": torch.ones(3)}, path, metadata)
    with pytest.raises(SparseFileError, match="bytes"):
        load(path)


def test_the_memory_limit_can_be_raised_and_lowered(tmp_path: Path) -> None:
    state = {"zeros": torch.zeros(1 << 25)}
    save(state, tmp_path / "net")
    with pytest.raises(SparseFileError, match=f"max_bytes={1 << 27}"):
        load(tmp_path / "net")
    assert_same(load(tmp_path / "net", max_bytes=1 << 27), state)
    save({"small": torch.ones(100)}, tmp_path / "net")
    with pytest.raises(SparseFileError, match="max_bytes=400"):
        load(tmp_path / "net", max_bytes=399)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "net"
    save(small(), path)
    return path.read_bytes()


def small() -> dict[str, Tensor]:
    gaps, mask = torch.zeros(3000), torch.zeros(100)
    gaps[::97], mask[::2] = 1, 2
    return {"gaps": gaps, "mask": mask, "dense": torch.ones(9), "zeros": torch.zeros(99), "flag": torch.tensor(True)}


@given(where=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
@settings(deadline=None, max_examples=100)
def test_a_flipped_byte_is_found(where: float, flip: int, whole: bytes, tmp_path_factory: Any) -> None:
    damaged = bytearray(whole)
    damaged[int(where * len(whole))] ^= flip
    path = tmp_path_factory.mktemp("flipped") / "net"
    path.write_bytes(damaged)
    try:
        loaded = load(path)
    except SparseFileError:
        return
    assert_same(loaded, small())  # a space of the header became another character that JSON skips


@given(keep=st.floats(0, 1, exclude_max=True))
@settings(deadline=None)
def test_a_truncated_file_is_found(keep: float, whole: bytes, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("cut") / "net"
    path.write_bytes(whole[: int(keep * len(whole))])
    with pytest.raises(SparseFileError):
        load(path)


numbers = st.one_of(st.integers(0, 40), st.integers(-2, 1 << 64), st.floats(), st.none(), st.booleans())


codings = st.sampled_from(["zeros", "dense", "mask", "gaps"])


forged = st.one_of(
    st.tuples(st.text(max_size=2), st.sampled_from(sorted(DTYPES)), st.lists(numbers, max_size=4), codings).flatmap(
        lambda head: st.lists(numbers, max_size=3).map(lambda tail: [*head, *tail])
    ),
    st.tuples(st.text(max_size=2), numbers).map(list),
    st.recursive(numbers | st.text(max_size=3), lambda inner: st.lists(inner, max_size=4), max_leaves=6),
)


@given(index=st.lists(forged, max_size=4), data=st.binary(max_size=60))
@settings(deadline=None, max_examples=150)
def test_any_index_with_a_right_checksum_gives_tensors_or_an_error(
    index: Any, data: bytes, tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.mktemp("forged") / "net"
    write(path, index, data)
    try:
        loaded = load(path, max_bytes=1 << 20)
    except SparseFileError:
        return
    assert sum(tensor.nbytes for tensor in loaded.values()) <= (1 << 20) * max(1, len(index))


@given(data=st.data())
@settings(deadline=None, max_examples=100)
def test_any_data_behind_a_right_index_gives_tensors_or_an_error(data: st.DataObject, tmp_path_factory: Any) -> None:
    """The lengths are right, the bits are not."""
    size = data.draw(st.integers(1, 200))
    count = data.draw(st.integers(1, size))
    low = data.draw(st.integers(0, 6))
    length = gap_bytes(size, count, low) + count
    path = tmp_path_factory.mktemp("bits") / "net"
    write(path, [["a", "uint8", [size], "gaps", count, low]], data.draw(st.binary(min_size=length, max_size=length)))
    try:
        assert load(path)["a"].shape == (size,)
    except SparseFileError:
        return


@pytest.mark.slow
def test_every_single_bit_that_flips_is_found(whole: bytes, tmp_path: Path) -> None:
    for place in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            (tmp_path / "net").write_bytes(damaged)
            try:
                loaded = load(tmp_path / "net")
            except SparseFileError:
                continue
            assert_same(loaded, small())
