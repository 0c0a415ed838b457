"""Files of compacted networks: written, read into a new model, trained on, and refused if they do not fit."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import flipout
from flipout import export


class Network(nn.Module):
    """Grouped convolutions, a tied matrix, a buffer that is not saved, and a size that the code reads."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12)
        self.depthwise, self.mix = nn.Conv2d(12, 12, 3, padding=1, groups=12), nn.Conv2d(12, 16, 1)
        self.split, self.one, self.other = nn.Linear(16, 24), nn.Linear(12, 8), nn.Linear(12, 8)
        self.tied = nn.Linear(8, 8, bias=False)
        self.head = nn.Linear(8, 8, bias=False)
        self.head.weight = self.tied.weight
        self.part = 12
        self.register_buffer("scale", torch.linspace(1, 2, 12).view(1, 12, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu() * self.scale
        x = self.mix(self.depthwise(x)).relu().mean((2, 3))
        one, other = self.split(x).relu().split(self.part, 1)
        return self.head(self.tied(self.one(one) + self.other(other)))  # type: ignore[no-any-return]


def make() -> nn.Module:
    torch.manual_seed(3)
    return Network()


EXAMPLE = torch.randn(2, 3, 8, 8)


def prune(model: nn.Module, sparsity: float) -> None:
    batches = [torch.randn(8, 3, 8, 8)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", flipout.ChannelWarning)  # the tied matrix stays
        flipout.prune(model, batches, sparsity=sparsity, granularity="channel", method="magnitude")


@pytest.fixture(scope="module")
def small() -> Any:
    torch.manual_seed(0)
    model = Network().eval()
    prune(model, 0.5)
    small = export.compact(model, EXAMPLE)
    assert sum(p.numel() for p in small.parameters()) < 0.6 * sum(p.numel() for p in model.parameters())
    return small


def test_a_file_restores_the_network_and_it_trains_on(small: Any, tmp_path: Path) -> None:
    export.save_compacted(small, tmp_path / "small.safetensors")
    again: Any = export.load_compacted(tmp_path / "small.safetensors", make).eval()
    assert type(again) is Network
    assert torch.equal(again(EXAMPLE), small(EXAMPLE))
    assert again.head.weight is again.tied.weight
    assert again.part == small.part
    assert repr(again) == repr(small)
    optimizer = torch.optim.SGD(again.train().parameters(), lr=0.1)
    before = again.mix.weight.detach().clone()
    again(EXAMPLE).square().mean().backward()
    optimizer.step()
    assert not torch.equal(again.mix.weight, before)
    export.save_compacted(again, tmp_path / "later.safetensors")
    later = export.load_compacted(tmp_path / "later.safetensors", make).eval()
    assert torch.equal(later(EXAMPLE), again.eval()(EXAMPLE))


def test_a_bias_that_compaction_has_given_a_layer_may_have_lost_channels(tmp_path: Path) -> None:
    def build() -> nn.Sequential:
        torch.manual_seed(0)
        layers = nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 6, bias=False), nn.Tanh(), nn.Linear(6, 2)
        return nn.Sequential(*layers)

    model, x = build().eval(), torch.randn(4, 3)
    nn.init.zeros_(model.get_parameter("0.weight")[:4])
    nn.init.zeros_(model.get_parameter("2.weight")[:3, 4])
    compacted = export.compact(model, x)
    assert compacted.get_parameter("2.bias").shape == (3,)
    export.save_compacted(compacted, tmp_path / "small.safetensors")
    again = export.load_compacted(tmp_path / "small.safetensors", build).eval()
    assert torch.equal(again(x), compacted(x))


def test_a_network_that_is_compacted_again_knows_its_first_indices(small: Any, tmp_path: Path) -> None:
    twice: Any = pickle.loads(pickle.dumps(small))
    prune(twice, 0.3)
    smaller: Any = export.compact(twice, EXAMPLE)
    assert smaller.mix.weight.numel() < small.mix.weight.numel()
    export.save_compacted(smaller, tmp_path / "smaller.safetensors")
    again = export.load_compacted(tmp_path / "smaller.safetensors", make).eval()
    assert torch.equal(again(EXAMPLE), smaller(EXAMPLE))


class Sum(nn.Module):
    """Most channels of one of its terms are 0."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 4)
        self.b.weight.data[2:] = 0

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.a(x) + self.b(x)
        return self.c(total.relu())  # type: ignore[no-any-return]


@pytest.fixture
def scattered() -> Any:
    torch.manual_seed(0)
    small = export.compact(Sum().eval(), EXAMPLE_OF_SUM)
    assert isinstance(small.get_submodule("b"), nn.Sequential)
    return small


EXAMPLE_OF_SUM = torch.randn(2, 8)


def test_channels_among_constants_are_restored_and_train_on(scattered: Any, tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    export.save_compacted(scattered, path)
    again: Any = export.load_compacted(path, Sum).eval()
    assert repr(again) == repr(scattered)
    assert torch.equal(again(EXAMPLE_OF_SUM), scattered(EXAMPLE_OF_SUM))
    optimizer = torch.optim.SGD(again.parameters(), lr=0.1)
    again(EXAMPLE_OF_SUM).square().sum().backward()
    optimizer.step()
    export.save_compacted(again, path)
    later = export.load_compacted(path, Sum).eval()
    assert torch.equal(later(EXAMPLE_OF_SUM), again(EXAMPLE_OF_SUM))
    assert not torch.equal(later(EXAMPLE_OF_SUM), scattered(EXAMPLE_OF_SUM))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("order", lambda order: order.roll(1).clamp(min=1)),
        ("order", lambda order: order.float()),
        ("order", lambda order: order[:2]),
        ("constants", lambda constants: constants[:, None]),
        ("constants", lambda constants: constants.long()),
    ],
)
def test_hostile_orders_of_channels_are_refused(
    scattered: Any, tmp_path: Path, name: str, change: Callable[[Tensor], Tensor]
) -> None:
    path = tmp_path / "small.safetensors"
    export.save_compacted(scattered, path)
    tensors, metadata = content_of(path)
    tensors[f"t:b.1.{name}"] = change(tensors[f"t:b.1.{name}"]).contiguous()
    save_file(tensors, path, metadata)
    with pytest.raises(export.CompactedFileError, match="'b'"):
        export.load_compacted(path, Sum)
    for place in ("nowhere", ""):
        save_file(tensors, path, {**metadata, "scattered": json.dumps({place: -1})})
        with pytest.raises(export.CompactedFileError, match=f"'{place}'"):
            export.load_compacted(path, Sum)


def test_the_whole_network_is_a_file_too(tmp_path: Path) -> None:
    model = make().eval()
    export.save_compacted(model, tmp_path / "whole.safetensors")
    again = export.load_compacted(tmp_path / "whole.safetensors", Network).eval()
    assert torch.equal(again(EXAMPLE), model(EXAMPLE))


def test_a_pickled_network_needs_no_flipout(tmp_path: Path) -> None:
    reader = nn.Linear(8, 2)
    reader.weight.data[:, 3:] = 0
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), reader)
    torch.save(export.compact(model, torch.randn(2, 6)), tmp_path / "net.pt")
    code = (
        "import sys, torch\n"
        "sys.modules['flipout'] = None\n"
        "model = torch.load('net.pt', weights_only=False)\n"
        "print(model[0].out_features, 'weights' in str(model.compaction))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout.split() == ["3", "True"], done.stderr


def content_of(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a file."""
    header = path.read_bytes()
    metadata = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])["__metadata__"]
    return {name: tensor.clone() for name, tensor in load_file(path).items()}, metadata


Change = Callable[[dict[str, Tensor], dict[str, str]], None]


def _index_out_of_range(tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    tensors["i:0:mix.weight"][-1] = 16


def _index_twice(tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    tensors["i:0:mix.weight"][1] = tensors["i:0:mix.weight"][0]


def _other_index(tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    tensors["i:0:mix.weight"] = tensors["i:0:mix.weight"].float()


def _index_of_nothing(tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    tensors["i:7:mix.weight"] = torch.tensor([0])


def _strange_entry(tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    tensors["x"] = torch.zeros(1)


def _further_tensor(tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    tensors["t:evil.weight"] = torch.zeros(1)


def _missing_tensor(tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    del tensors["t:mix.bias"]


def _other_shape(tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    tensors["t:mix.bias"] = torch.zeros(1)


def _other_kind(tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    tensors["t:mix.bias"] = tensors["t:mix.bias"].long()


def _attribute(value: Any, name: str = "part", path: str = "") -> Change:
    def change(tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
        metadata["attributes"] = json.dumps({path: {name: value}})

    return change


def _metadata(key: str, value: str) -> Change:
    def change(tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
        metadata[key] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_index_out_of_range, "mix.weight"),
        (_index_twice, "mix.weight"),
        (_other_index, "mix.weight"),
        (_index_of_nothing, "dimension 7 of mix.weight"),
        (_strange_entry, "'x'"),
        (_further_tensor, "evil.weight"),
        (_missing_tensor, "mix.bias"),
        (_other_shape, "mix.bias"),
        (_other_kind, "mix.bias"),
        (_attribute(10**9), "part"),
        (_attribute(-1), "part"),
        (_attribute("12"), "part"),
        (_attribute(True), "part"),
        (_attribute([6, 6]), "part"),
        (_attribute(1, "forward"), "forward"),
        (_attribute(1, "__class__"), "__class__"),
        (_attribute(1, path="nowhere"), "nowhere"),
        (_metadata("attributes", "{"), "attributes"),
        (_metadata("attributes", "[1]"), "attributes"),
        (_metadata("attributes", '{"": 3}'), "module"),
        (_metadata("same", '{"head.weight": ["tied.weight"]}'), "head.weight"),
        (_metadata("same", "{}"), "head.weight"),
        (_metadata("format", "flipout-sparse"), "save_compacted"),
        (_metadata("version", "2"), "version"),
    ],
)
def test_hostile_files_are_refused(small: Any, tmp_path: Path, change: Change, message: str) -> None:
    path = tmp_path / "small.safetensors"
    export.save_compacted(small, path)
    tensors, metadata = content_of(path)
    change(tensors, metadata)
    save_file(tensors, path, metadata)
    with pytest.raises(export.CompactedFileError, match=message):
        export.load_compacted(path, make)


def test_files_that_are_none(small: Any, tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    with pytest.raises(export.CompactedFileError, match="no such file"):
        export.load_compacted(path, make)
    export.save_compacted(small, path)
    whole = path.read_bytes()
    for content in (b"", b"\0" * 40, whole[:-10], b"\xff" * 8 + whole[8:]):
        path.write_bytes(content)
        with pytest.raises(export.CompactedFileError, match="safetensors"):
            export.load_compacted(path, make)


def test_another_architecture_is_named(small: Any, tmp_path: Path) -> None:
    export.save_compacted(small, tmp_path / "small.safetensors")
    with pytest.raises(export.CompactedFileError, match=r"Network.*Linear"):
        export.load_compacted(tmp_path / "small.safetensors", lambda: nn.Linear(3, 3))
    with pytest.raises(export.CompactedFileError, match=r"build\(\) returned a str"):
        export.load_compacted(tmp_path / "small.safetensors", lambda: "network")  # type: ignore[arg-type, return-value]
