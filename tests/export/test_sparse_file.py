"""Sparse files: every bit comes back, and no file does harm."""

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
from torch import Tensor, nn

from flipout.export import sparse_file
from flipout.export.coding import best_low, decode_gaps, encode_gaps, gap_bytes, pack, unpack
from flipout.export.sparse_file import load, save
from flipout.export.sparse_index import DTYPES, SparseFileError
from flipout.lab import build


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


def assert_same(loaded: dict[str, Tensor], state: dict[str, Tensor]) -> None:
    assert list(loaded) == list(state)
    for name, tensor in state.items():
        assert loaded[name].dtype == tensor.dtype
        assert loaded[name].shape == tensor.shape
        assert torch.equal(bits(loaded[name]), bits(tensor)), name


@given(st.data())
def test_positions_come_back_in_the_bytes_foretold(data: st.DataObject) -> None:
    size = data.draw(st.integers(0, 2000))
    chosen = sorted(data.draw(st.sets(st.integers(0, max(size - 1, 0)), max_size=50)) if size else set())
    low = data.draw(st.integers(0, 12))
    positions = torch.tensor(chosen, dtype=torch.long)
    packed = encode_gaps(positions, size, low)
    assert len(packed) == gap_bytes(size, len(chosen), low)
    assert decode_gaps(packed, size, len(chosen), low).tolist() == chosen
    assert gap_bytes(size, len(chosen), best_low(size, len(chosen))) <= len(packed)


@given(st.lists(st.booleans(), max_size=50))
def test_bits_are_packed_from_the_lowest(flags: list[bool]) -> None:
    slow = sum(flag << i for i, flag in enumerate(flags)).to_bytes(-(-len(flags) // 8), "little")
    packed = pack(torch.tensor(flags, dtype=torch.bool))
    assert bytes(packed.tolist()) == slow
    assert unpack(packed, len(flags)).tolist() == flags


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any bits in any dtype and shape, with some share of them zero."""
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    shape = draw(st.lists(st.integers(0, 7), max_size=4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    size = int(torch.tensor(shape).prod())
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (size, dtype.itemsize), generator=generator)
    raw[torch.rand(size, generator=generator) > draw(st.sampled_from([0, 0.01, 0.1, 0.5, 1]))] = 0
    tensor = raw.to(torch.uint8).flatten().view(dtype).view(shape)
    return tensor.transpose(0, -1) if draw(st.booleans()) and len(shape) > 1 else tensor


@given(state=st.dictionaries(st.text(max_size=8), tensors(), max_size=5))
@settings(deadline=None)
def test_every_bit_of_every_type_comes_back(state: dict[str, Tensor], tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("any") / "state.safetensors"
    save(state, path)
    assert_same(load(path), state)


def test_what_is_no_zero_stays(tmp_path: Path) -> None:
    odd = torch.zeros(5000)
    odd[[7, 70, 700, 4999]] = torch.tensor([-0.0, float("nan"), float("-inf"), 1e-45])
    state = {"odd": odd, "scalar": torch.tensor(-0.0), "counter": torch.tensor(0), "empty": torch.empty(0, 3)}
    save(state, tmp_path / "odd")
    loaded = load(tmp_path / "odd")
    assert_same(loaded, state)
    assert (bits(loaded["odd"]) != 0).sum() > 0
    assert torch.copysign(torch.ones(()), loaded["odd"][7]) == -1


def test_zeros_with_a_sign_are_kept_with_a_hint(tmp_path: Path) -> None:
    """What masking by multiplication leaves behind."""
    weight = -torch.ones(1000) * (torch.arange(1000) < 10)
    with pytest.warns(UserWarning, match=r"990 zeros of weight have a minus sign.*weight \+ 0"):
        save({"weight": weight}, tmp_path / "signed")
    assert_same(load(tmp_path / "signed"), {"weight": weight})
    save({"weight": weight + 0}, tmp_path / "plain")
    assert 4 * (tmp_path / "plain").stat().st_size < (tmp_path / "signed").stat().st_size


def test_tied_tensors_are_stored_once_and_come_back_tied(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(50, 50), nn.Linear(50, 50))
    save(model, tmp_path / "apart")
    model[1].weight = model[0].weight
    save(model, tmp_path / "tied")
    assert (tmp_path / "apart").stat().st_size - (tmp_path / "tied").stat().st_size > 9000
    loaded = load(tmp_path / "tied")
    assert_same(loaded, dict(model.state_dict()))
    assert loaded["0.weight"].data_ptr() == loaded["1.weight"].data_ptr()


def test_views_of_one_tensor_are_not_taken_for_tied_ones(tmp_path: Path) -> None:
    matrix = torch.arange(16.0).view(4, 4)
    state = {
        "whole": matrix,
        "turned": matrix.t(),
        "row": matrix[0],
        "column": matrix[:, 0],
        "bits": matrix.view(torch.int32),
    }
    save(state, tmp_path / "views")
    assert_same(load(tmp_path / "views"), state)
    numbers = torch.randn(50, dtype=torch.complex64)
    complex_views = {"plain": numbers, "conjugate": numbers.conj(), "minus": numbers.conj().imag, "plus": numbers.imag}
    save(complex_views, tmp_path / "views")
    assert all(torch.equal(tensor, complex_views[name]) for name, tensor in load(tmp_path / "views").items())


@torch.no_grad()
def pruned(name: str, sparsity: float) -> nn.Module:
    """A network with random zeros, and batch norm as dense as it is."""
    torch.manual_seed(0)
    model = build(name)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.masked_fill_(torch.rand_like(parameter) < sparsity, 0)
    return model


def test_resnet18_at_a_thousandth_is_250_times_smaller(tmp_path: Path) -> None:
    model = pruned("resnet18", 0.999)
    save(model, tmp_path / "sparse")
    save_file(model.state_dict(), tmp_path / "dense")
    dense, sparse = ((tmp_path / name).stat().st_size for name in ("dense", "sparse"))
    assert dense > 250 * sparse
    assert_same(load(tmp_path / "sparse"), dict(model.state_dict()))


def test_a_dense_network_takes_hardly_more_than_its_weights(tmp_path: Path) -> None:
    model = build("lenet-5", (1, 28, 28))
    save(model, tmp_path / "net")
    assert (tmp_path / "net").stat().st_size < 4 * sum(p.numel() for p in model.parameters()) + 1000


def test_saving_replaces_the_file_in_one_go_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "net"
    save({"a": torch.ones(3)}, path)
    before = path.read_bytes()
    monkeypatch.setattr(sparse_file, "to_safetensors", lambda *_: "no bytes")
    with pytest.raises(TypeError):
        save({"a": torch.zeros(3)}, path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["net"]


@pytest.mark.parametrize(
    "odd",
    ["text", torch.ones(3).to_sparse(), torch.ones(3, device="meta")],
    ids=["text", "sparse", "meta"],
)
def test_what_cannot_be_held_is_named(odd: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="odd one"):
        save({"odd one": odd}, tmp_path / "net")
    assert not list(tmp_path.iterdir())


# What a hostile or damaged file does.


def write(path: Path, index: Any, data: bytes = b"", **metadata: str) -> None:
    """A file with any index and data, and a checksum that is right."""
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
    "empty entry": ([[]], b"", "cannot be"),
    "unknown type": ([["a", "float31", [1], "zeros"]], b"", "cannot be"),
    "unknown coding": ([["a", "float32", [1], "zstd"]], b"", "cannot be"),
    "negative side": ([["a", "float32", [-1], "zeros"]], b"", "cannot be"),
    "two negative sides": ([["a", "float32", [-2, -2], "dense"]], bytes(16), "cannot be"),
    "half a side": ([["a", "float32", [1.5], "zeros"]], b"", "cannot be"),
    "true side": ([["a", "float32", [True], "dense"]], bytes(4), "cannot be"),
    "sides that overflow": ([["a", "float32", [1 << 61, 1 << 61, 0], "zeros"]], b"", "cannot be"),
    "sides without end": ([["a", "float32", [(1 << 62) - 1] * 20_000, "zeros"]], b"", "cannot be"),
    "more axes than torch has": ([["a", "float32", [1] * 65, "zeros"]], b"", "cannot be"),
    "too many values": ([["a", "float32", [2], "mask", 3]], bytes(13), "cannot be"),
    "too many low bits": ([["a", "float32", [2], "gaps", 1, 41]], bytes(13), "cannot be"),
    "tied to itself": ([["a", 0]], b"", "cannot be"),
    "tied to a tied one": ([["a", "bool", [], "zeros"], ["b", 0], ["c", 1]], b"", "cannot be"),
    "a name twice": ([["a", "bool", [], "zeros"], ["a", "bool", [], "zeros"]], b"", "twice"),
    "too little data": ([["a", "float32", [2], "dense"]], bytes(7), "8 bytes of data, and there are 7"),
    "too much data": ([["a", "float32", [2], "dense"]], bytes(9), "8 bytes of data, and there are 9"),
    "gigantic zeros": ([["a", "float32", [1 << 50], "zeros"]], b"", "max_bytes="),
    "many zeros": ([[f"{i}", "float32", [1 << 22], "zeros"] for i in range(5)], b"", "max_bytes="),
    "gigantic gaps": ([["a", "float32", [1 << 40], "gaps", 1, 40]], bytes([0] * 5 + [1] + [0] * 4), "max_bytes="),
    "fewer marks than values": ([["a", "uint8", [8], "mask", 2]], b"\x01ab", "1 elements are marked"),
    "marks behind the end": ([["a", "uint8", [7], "mask", 1]], b"\x80a", "behind the last"),
    "fewer gaps than values": ([["a", "uint8", [8], "gaps", 2, 3]], b"\x00\x01ab", "1 positions are stored"),
    "a position behind the end": ([["a", "uint8", [5], "gaps", 1, 3]], b"\x07\x01a", "lie behind"),
    "positions that do not rise": ([["a", "uint8", [8], "gaps", 2, 3]], b"\x09\x03ab", "do not rise"),
    "no boolean": ([["a", "bool", [2], "dense"]], b"\x00\x02", "neither 0 nor 1"),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_forged_files(forgery: str, tmp_path: Path) -> None:
    index, data, message = FORGED[forgery]
    write(tmp_path / "forged", index, data)
    with pytest.raises(SparseFileError, match=message):
        load(tmp_path / "forged")


def test_a_forger_who_makes_no_mistake_is_read(tmp_path: Path) -> None:
    write(tmp_path / "right", [["a", "uint8", [8], "gaps", 2, 3], ["b", 0]], b"\x11\x03yz")
    assert bytes(load(tmp_path / "right")["b"].tolist()) == b"\0yz\0\0\0\0\0"


def test_other_files(tmp_path: Path) -> None:
    path = tmp_path / "net"
    with pytest.raises(FileNotFoundError):
        load(path)
    with pytest.raises(SparseFileError, match="is a folder"):
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
    with pytest.raises(SparseFileError, match="an index and data"):
        load(path)
    save_file({"index": torch.ones(3), "data": torch.ones(3)}, path, metadata)
    with pytest.raises(SparseFileError, match="not bytes"):
        load(path)


def test_more_memory_can_be_allowed_and_less(tmp_path: Path) -> None:
    state = {"zeros": torch.zeros(1 << 25)}
    save(state, tmp_path / "net")
    with pytest.raises(SparseFileError, match=f"max_bytes={1 << 27}"):
        load(tmp_path / "net")
    assert_same(load(tmp_path / "net", max_bytes=1 << 27), state)
    save({"small": torch.ones(100)}, tmp_path / "net")
    with pytest.raises(SparseFileError, match="400 bytes, more than the 399"):
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
@pytest.mark.parametrize("name", ["resnet18", "vgg19", "densenet121"])
@pytest.mark.parametrize("sparsity", [0, 0.9, 0.999, 1])
def test_whole_networks_come_back(name: str, sparsity: float, tmp_path: Path) -> None:
    model = pruned(name, sparsity)
    save(model, tmp_path / "net")
    assert_same(load(tmp_path / "net"), dict(model.state_dict()))


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
