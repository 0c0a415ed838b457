"""Sparse files restore every bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from flipout.export import sparse_file
from flipout.export.sparse_file import load, save
from flipout.export.sparse_index import DTYPES, best_low, decode_gaps, encode_gaps, gap_bytes, pack, unpack
from flipout_lab import build


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


def assert_same(loaded: dict[str, Tensor], state: dict[str, Tensor]) -> None:
    assert list(loaded) == list(state)
    for name, tensor in state.items():
        assert loaded[name].dtype == tensor.dtype
        assert loaded[name].shape == tensor.shape
        assert torch.equal(bits(loaded[name]), bits(tensor)), name


@given(st.data())
def test_positions_are_restored_and_take_the_computed_bytes(data: st.DataObject) -> None:
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
    """Draw tensors of any bits, dtype and shape, with some share of zeros."""
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
def test_every_bit_of_every_dtype_is_restored(state: dict[str, Tensor], tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("any") / "state.safetensors"
    save(state, path)
    assert_same(load(path), state)


def test_minus_zero_nan_and_tiny_numbers_are_stored(tmp_path: Path) -> None:
    odd = torch.zeros(5000)
    odd[[7, 70, 700, 4999]] = torch.tensor([-0.0, float("nan"), float("-inf"), 1e-45])
    state = {"odd": odd, "scalar": torch.tensor(-0.0), "counter": torch.tensor(0), "empty": torch.empty(0, 3)}
    save(state, tmp_path / "odd")
    loaded = load(tmp_path / "odd")
    assert_same(loaded, state)
    assert (bits(loaded["odd"]) != 0).sum() > 0
    assert torch.copysign(torch.ones(()), loaded["odd"][7]) == -1


def test_minus_zeros_are_stored_with_a_warning(tmp_path: Path) -> None:
    """Multiplication with a mask produces them."""
    weight = -torch.ones(1000) * (torch.arange(1000) < 10)
    with pytest.warns(UserWarning, match="990 zeros of weight"):
        save({"weight": weight}, tmp_path / "signed")
    assert_same(load(tmp_path / "signed"), {"weight": weight})
    save({"weight": weight + 0}, tmp_path / "plain")
    assert 4 * (tmp_path / "plain").stat().st_size < (tmp_path / "signed").stat().st_size


def test_tied_tensors_are_stored_once_and_loaded_as_tied(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(50, 50), nn.Linear(50, 50))
    save(model, tmp_path / "apart")
    model[1].weight = model[0].weight
    save(model, tmp_path / "tied")
    assert (tmp_path / "apart").stat().st_size - (tmp_path / "tied").stat().st_size > 9000
    loaded = load(tmp_path / "tied")
    assert_same(loaded, dict(model.state_dict()))
    assert loaded["0.weight"].data_ptr() == loaded["1.weight"].data_ptr()


def test_views_of_one_tensor_are_not_tied(tmp_path: Path) -> None:
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
    """Return a network with random zeros in its weights; batch norm stays dense."""
    torch.manual_seed(0)
    model = build(name)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.masked_fill_(torch.rand_like(parameter) < sparsity, 0)
    return model


def test_resnet18_at_999_per_mille_zeros_is_250_times_smaller(tmp_path: Path) -> None:
    model = pruned("resnet18", 0.999)
    save(model, tmp_path / "sparse")
    save_file(model.state_dict(), tmp_path / "dense")
    dense, sparse = ((tmp_path / name).stat().st_size for name in ("dense", "sparse"))
    assert dense > 250 * sparse
    assert_same(load(tmp_path / "sparse"), dict(model.state_dict()))


def test_a_dense_network_takes_little_more_than_its_weights(tmp_path: Path) -> None:
    model = build("lenet-5", (1, 28, 28))
    save(model, tmp_path / "net")
    assert (tmp_path / "net").stat().st_size < 4 * sum(p.numel() for p in model.parameters()) + 1000


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_value_that_cannot_be_stored_is_named(odd: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="odd one"):
        save({"odd one": odd}, tmp_path / "net")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "vgg19", "densenet121"])
@pytest.mark.parametrize("sparsity", [0, 0.9, 0.999, 1])
def test_whole_networks_are_restored(name: str, sparsity: float, tmp_path: Path) -> None:
    model = pruned(name, sparsity)
    save(model, tmp_path / "net")
    assert_same(load(tmp_path / "net"), dict(model.state_dict()))
