"""The channel graph of small networks: which channels belong together, and which stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from flipout.channels.copies import UnsupportedNetworkError
from flipout.channels.graph import ChannelGraph
from flipout.channels.labels import FIXED


def graph(model: nn.Module, *shape: int) -> ChannelGraph:
    return ChannelGraph.of(model, (torch.randn(2, *shape),))


class Net(nn.Module):
    """Two layers, with any function between them."""

    def __init__(self, between: Callable[[Tensor], Tensor], inner: int = 8, outer: int = 8) -> None:
        super().__init__()
        self.first, self.last, self.between = nn.Linear(4, inner), nn.Linear(outer, 3), between

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.between(self.first(x)))
        return out


def written_and_read(
    between: Callable[[Tensor], Tensor], inner: int = 8, outer: int = 8
) -> tuple[list[int], list[int]]:
    """The sets of the outputs of the first layer, and those of the inputs of the last one."""
    found = graph(Net(between, inner, outer), 5, 4)
    return found.tensors["first.weight"][0].tolist(), found.tensors["last.weight"][1].tolist()


@pytest.mark.parametrize(
    "between",
    [
        lambda x: x.relu() * 2 + 1,
        lambda x: x.transpose(1, 2).softmax(2).transpose(1, 2),  # over places, not channels
        lambda x: x - x.mean(1, keepdim=True),
        lambda x: x.unsqueeze(1).expand(-1, 3, -1, -1).mean(1),
        lambda x: functional.pad(x, (0, 0, 1, 1)),
        lambda x: x[:, 1:3],
        lambda x: torch.where(x > 0, x, -x).clamp(-3, 3),
    ],
)
def test_channels_pass_by_themselves(between: Callable[[Tensor], Tensor]) -> None:
    written, read = written_and_read(between)
    assert len(set(written)) == 8
    assert FIXED not in written
    assert read == written


@pytest.mark.parametrize(
    "between",
    [
        lambda x: x.softmax(-1),
        lambda x: functional.layer_norm(x, (8,)),
        lambda x: x - x.mean(-1, keepdim=True),
        lambda x: x.cumsum(-1),
        lambda x: x @ torch.eye(8),
        lambda x: x + torch.arange(8),
        lambda x: x.sort(-1).values,
        lambda x: torch.fft.rfft(torch.cat([x, x], -1)).real[..., :8],
        lambda x: x.index_select(-1, torch.arange(8)),
    ],
)
def test_what_mixes_channels_fixes_them(between: Callable[[Tensor], Tensor]) -> None:
    written, read = written_and_read(between)
    assert set(written) == set(read) == {FIXED}


def test_flattened_channels_have_all_their_positions() -> None:
    written, read = written_and_read(lambda x: x.transpose(1, 2).flatten(1), outer=40)
    assert read == [channel for channel in written for _ in range(5)]


def test_a_concatenation_appends() -> None:
    written, read = written_and_read(lambda x: torch.cat([x, x.relu()], -1), outer=16)
    assert read == written + written


def test_halves_go_together() -> None:
    """The code cuts in half whatever is left, so both halves lose the same places."""
    written, read = written_and_read(lambda x: x.chunk(2, -1)[0] * x.chunk(2, -1)[1].sigmoid(), outer=4)
    assert written[:4] == written[4:] == read
    written, read = written_and_read(lambda x: torch.cat(x.chunk(2, -1)[::-1], -1))
    assert len(set(written)) == 4
    assert read == written


def test_channels_that_are_shuffled_between_groups() -> None:
    written, read = written_and_read(lambda x: x.unflatten(-1, (2, 4)).transpose(-1, -2).flatten(-2))
    assert len(set(written)) == 4
    assert read == [channel for channel in written[:4] for _ in range(2)]


def attend(x: Tensor, heads: int) -> Tensor:
    query, key, value = x.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    return functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


def test_heads_go_as_a_whole_with_query_key_and_value() -> None:
    written, read = written_and_read(lambda x: attend(x, 2), inner=24)
    assert len(set(written)) == 2
    assert written == read * 3
    assert read == [read[0]] * 4 + [read[4]] * 4


class SingleHead(nn.Module):
    """An attention with one head."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(1, 2)
        out: Tensor = self.out(scores.softmax(-1) @ self.value(x))
        return out


def test_a_single_head_keeps_its_queries_and_keys() -> None:
    """The scores are sums over their features; of the values each feature goes by itself."""
    found = graph(SingleHead(), 5, 6).tensors
    for name in ("query.weight", "key.weight"):
        assert set(found[name][0].tolist()) == {FIXED}
    assert found["value.weight"][0].tolist() == found["out.weight"][1].tolist()
    assert len(set(found["value.weight"][0].tolist())) == 8


class GroupedQueries(nn.Module):
    """Four heads of queries, of which two share keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(6, 16), nn.Linear(6, 8), nn.Linear(6, 8)
        self.out = nn.Linear(16, 6)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (-1, 4)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        angle = torch.arange(4) * torch.arange(x.shape[1])[:, None]
        query, key = (_rotated(each, angle) for each in (query, key))
        found = functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
        out: Tensor = self.out(found.transpose(1, 2).flatten(2))
        return out


def _rotated(x: Tensor, angle: Tensor) -> Tensor:
    return x * angle.cos() + torch.cat([-x[..., 2:], x[..., :2]], -1) * angle.sin()


def test_heads_that_share_keys_and_values_go_together() -> None:
    found = graph(GroupedQueries(), 5, 6).tensors
    key = found["key.weight"][0].tolist()
    assert len(set(key)) == 2
    assert FIXED not in key
    assert key == found["value.weight"][0].tolist()
    assert found["query.weight"][0].tolist() == [key[0]] * 8 + [key[4]] * 8 == found["out.weight"][1].tolist()


def test_groups_of_a_convolution_and_of_a_norm() -> None:
    convolutions = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 9, 1, groups=3), nn.GroupNorm(3, 9), nn.Conv2d(9, 2, 1)
    found = graph(nn.Sequential(*convolutions), 3, 4, 4).tensors
    outputs = found["1.weight"][0].tolist()
    assert outputs == found["3.weight"][1].tolist() == found["2.weight"][0].tolist()
    assert [outputs.count(each) for each in dict.fromkeys(outputs)] == [3, 3, 3]
    assert found["0.weight"][0].tolist() == [each for each in dict.fromkeys(outputs) for _ in range(2)]


class Excited(nn.Module):
    """A residual block with squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.deep = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm, self.down, self.up = nn.BatchNorm2d(8), nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm(self.deep(x)).relu_()
        y = y * self.up(self.down(y.mean((2, 3), keepdim=True)).relu()).sigmoid()
        y += x
        out: Tensor = self.head(functional.adaptive_avg_pool2d(y, 1).flatten(1))
        return out


def test_a_residual_block_with_gates() -> None:
    found = graph(Excited(), 3, 6, 6)
    stream = found.tensors["stem.weight"][0].tolist()
    assert len(set(stream)) == 8
    assert FIXED not in stream
    for name, dim in (
        ("deep.weight", 0),
        ("norm.bias", 0),
        ("norm.running_var", 0),
        ("down.weight", 1),
        ("up.bias", 0),
    ):
        assert found.tensors[name][dim].tolist() == stream, name
    assert set(found.read) == {"down.weight", "up.weight", "head.weight"}
    assert found.tensors["head.weight"][1].tolist() == stream
    assert found.tensors["head.weight"][0].tolist() == [FIXED] * 4


def kept_outputs(found: ChannelGraph, weights: dict[str, Tensor]) -> list[int]:
    """What is left of the outputs of the stem."""
    left = found.remainder(found.kept(weights))
    stem, deep = left["stem.weight"][0], left["deep.bias"][0]
    assert stem is not None
    assert deep is not None
    assert torch.equal(stem, deep)
    return stem.tolist()


def test_what_nothing_reads_is_not_kept() -> None:
    model = Excited()
    found = graph(model, 3, 6, 6)
    weights = {name: torch.ones_like(model.get_parameter(name), dtype=torch.bool) for name in found.read}
    assert found.remainder(found.kept(weights)) == {}
    for name in ("head.weight", "down.weight"):
        weights[name][:, [2, 5]] = False
    assert kept_outputs(found, weights) == [0, 1, 3, 4, 6, 7]
    weights["head.weight"][:, 0] = False  # its gate is still computed from it
    assert kept_outputs(found, weights) == [0, 1, 3, 4, 6, 7]
    assert found.multiply_adds(found.kept(weights)) < found.multiply_adds()


def test_an_operation_that_is_not_known_is_named_with_its_line() -> None:
    def between(x: Tensor) -> Tensor:
        spectrum: Tensor = torch.fft.rfft(torch.cat([x, x], -1))
        return spectrum.real[..., :8]

    found = graph(Net(between), 5, 4)
    assert "fft_rfft at test_graph.py" in found.reasons["first.weight"][0]


class ByName(nn.Module):
    """Called with keyword arguments, a dictionary and a plain dataclass-like result."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, batch: dict[str, Tensor], *, gate: Tensor, skip: Tensor | None = None) -> dict[str, object]:
        hidden = self.first(batch["x"]) * gate
        return {"logits": self.last(hidden if skip is None else hidden + skip), "name": "answer"}


def test_keyword_arguments_and_nested_inputs() -> None:
    found = ChannelGraph.of(ByName(), ({"x": torch.randn(2, 4)},), {"gate": torch.randn(2, 1)})
    assert found.tensors["first.weight"][0].tolist() == found.tensors["last.weight"][1].tolist()
    fixed = ChannelGraph.of(ByName(), ({"x": torch.randn(2, 4)},), {"gate": torch.randn(2, 8)})
    assert set(fixed.tensors["first.weight"][0].tolist()) == {FIXED}  # the gate has that size


def test_a_layer_that_is_called_twice() -> None:
    shared = nn.Linear(4, 4)
    found = graph(nn.Sequential(nn.Linear(3, 4), shared, nn.ReLU(), shared, nn.Linear(4, 2)), 3).tensors
    assert found["0.weight"][0].tolist() == found["1.weight"][1].tolist() == found["1.weight"][0].tolist()


def test_a_decision_by_values_is_an_error_with_its_line() -> None:
    def between(x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x

    with pytest.raises(UnsupportedNetworkError, match=r"depends on data, at test_graph\.py"):
        graph(Net(between), 5, 4)


def test_what_is_not_known_of_a_dimension_counts_as_read() -> None:
    """The weights of experts are stacks of matrices; a mask of the first dimensions says nothing of the last one."""

    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.first = nn.Parameter(torch.randn(2, 5, 6)), nn.Linear(4, 6)

        def forward(self, x: Tensor) -> Tensor:
            return torch.bmm(self.first(x).expand(2, -1, -1), self.weight.transpose(1, 2))

    model = Stack().eval()
    graph = ChannelGraph.of(model, (torch.randn(3, 4),))
    whole = graph.kept({"weight": torch.ones(2, 5, 6, dtype=torch.bool)})
    assert torch.equal(graph.kept({"weight": torch.ones(2, 5, dtype=torch.bool)}), whole)


@pytest.mark.parametrize(
    "reads",
    [
        lambda x, vector: x @ vector,
        lambda x, vector: functional.linear(x, vector),
        lambda x, vector: torch.einsum("bc,c->b", x, vector),
        lambda x, vector: torch.mv(x, vector),
        lambda x, vector: torch.dot(x[0], vector),
    ],
)
def test_a_vector_reads_channels(reads: Callable[[Tensor, Tensor], Tensor]) -> None:
    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.vector = nn.Linear(4, 6), nn.Parameter(torch.randn(6))

        def forward(self, x: Tensor) -> Tensor:
            return reads(self.first(x), self.vector)

    graph = ChannelGraph.of(Scores().eval(), (torch.randn(3, 4),))
    sets = graph.tensors["vector"][0]
    assert torch.equal(graph.tensors["first.weight"][0], sets)
    mask = torch.tensor([True, False, True, True, False, True])
    assert torch.equal(graph.kept({"vector": mask})[sets], mask)
