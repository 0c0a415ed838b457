"""Hidden units of recurrent layers as channels: pruned, compacted and removed in training."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout
from flipout.channels.graph import ChannelGraph
from flipout.export import compact
from tests.helpers import sgd, train

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections")
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "lstm": (nn.LSTM, {}),
    "lstm, two layers": (nn.LSTM, {"num_layers": 2}),
    "lstm, both directions": (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    "lstm, projected": (nn.LSTM, {"num_layers": 2, "proj_size": 5}),
    "lstm, no bias": (nn.LSTM, {"bias": False}),
    "gru": (nn.GRU, {"num_layers": 2}),
    "rnn": (nn.RNN, {"bidirectional": True}),
}


class Sequences(nn.Module):
    """A linear layer, a recurrent one, and a classifier, on 12 numbers as a sequence of 3 x 4."""

    def __init__(self, kind: str = "lstm") -> None:
        super().__init__()
        torch.manual_seed(0)
        module, options = KINDS[kind]
        self.first, self.recurrent = nn.Linear(4, 6), module(6, 8, batch_first=True, **options)
        self.head = nn.Linear(self.recurrent(torch.zeros(1, 3, 6))[0].shape[2], 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(self.first(x.view(-1, 3, 4)).relu())[0][:, -1])  # type: ignore[no-any-return]


class LastState(Sequences):
    """Reads the last states in place of the outputs, and starts with states of its own."""

    def __init__(self) -> None:
        super().__init__("lstm, two layers")
        self.start = nn.Linear(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        begin = self.start(x).expand(2, -1, -1)
        _, (hidden, _) = self.recurrent(self.first(x.view(-1, 3, 4)).relu(), (begin, torch.zeros_like(begin)))
        return self.head(hidden[-1])  # type: ignore[no-any-return]


class Cells(nn.Module):
    """Cells that are called step by step."""

    def __init__(self, cell: type[nn.LSTMCell] | type[nn.GRUCell]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.head = cell(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        state: Any = None
        for step in x.view(-1, 3, 4).unbind(1):
            state = self.cell(step, state)
        return self.head(state[0] if isinstance(state, tuple) else state)  # type: ignore[no-any-return]


NETWORKS: dict[str, Any] = {
    **{kind: lambda kind=kind: Sequences(kind) for kind in KINDS},
    "states": LastState,
    "lstm cell": lambda: Cells(nn.LSTMCell),
    "gru cell": lambda: Cells(nn.GRUCell),
}
X = torch.randn(5, 12, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", NETWORKS)
def test_units_are_pruned_and_removed(name: str) -> None:
    model = NETWORKS[name]()
    optimizer = sgd(model, lr=0.05)
    pruner = flipout.FlipOut(model, optimizer, sparsity=0.5, steps=12, granularity="channel")
    train(model, optimizer, 12)
    model.eval()
    assert pruner.sparsity >= 0.5
    small: Any = compact(model, X)
    assert type(small) is type(model)
    assert torch.allclose(small(X), model(X), atol=1e-5)
    recurrent = small.cell if isinstance(model, Cells) else small.recurrent
    assert recurrent.hidden_size < 8
    whole, left = (sum(each.numel() for each in m.parameters() if each.ndim > 1) for m in (model, small))
    assert left <= 0.5 * whole
    small(X).sum().backward()
    assert all(each.grad is not None for each in small.parameters())


def test_a_unit_is_one_channel_of_all_gates_layers_and_directions() -> None:
    model = Sequences("lstm, both directions")
    graph = ChannelGraph.of(model, (X,))
    (units,) = {tuple(rows.tolist()) for rows in graph.tensors["recurrent.weight_ih_l0"][0].view(4, 8)}
    assert len(set(units)) == 8
    for name, dims in graph.tensors.items():
        if name.startswith("recurrent.bias"):
            assert dims[0].tolist() == list(units) * 4
    assert graph.tensors["recurrent.weight_hh_l1_reverse"][1].tolist() == list(units)
    assert graph.tensors["recurrent.weight_ih_l1"][1].tolist() == list(units) * 2
    assert graph.tensors["head.weight"][1].tolist() == list(units) * 2


@torch.no_grad()
def test_a_unit_that_only_reads_itself_is_removed() -> None:
    model = Sequences("gru").eval()
    for name, weight in model.named_parameters():
        if name.startswith("recurrent.weight_hh") or name in ("recurrent.weight_ih_l1", "head.weight"):
            weight[:, [1, 4, 6]] = 0
    for layer in (0, 1):
        model.get_parameter(f"recurrent.weight_hh_l{layer}")[[1, 9, 17], 1] = 1.0  # in each of its three gates
    small: Any = compact(model, X)
    assert small.recurrent.hidden_size == 5
    assert torch.allclose(small(X), model(X), atol=1e-6)


def test_states_that_are_returned_keep_their_units() -> None:
    model = nn.LSTM(4, 8)
    x = torch.randn(3, 2, 4)
    with torch.no_grad():
        model.get_parameter("weight_hh_l0")[:, 2] = 0
    small: Any = compact(model, x)
    assert small(x)[1][0].shape == (1, 2, 8)


def test_an_excluded_matrix_keeps_the_units() -> None:
    model = Sequences("lstm")
    optimizer = sgd(model, lr=0.05)
    pruner = flipout.FlipOut(
        model, optimizer, sparsity=0.1, steps=12, granularity="channel", exclude="recurrent.weight_hh_l0"
    )
    with pytest.warns(flipout.ChannelWarning, match=r"head\.weight"):
        train(model, optimizer, 12)
    assert bool(pruner.masks["head.weight"].all())
    assert not bool(pruner.masks["recurrent.weight_ih_l0"].all())  # features of the first layer


@pytest.mark.parametrize("kind", ["lstm", "gru", "lstm, projected"])
def test_a_shrunk_training_is_the_same(kind: str) -> None:
    def begin() -> Any:
        model = Sequences(kind).double()
        optimizer = sgd(model, lr=0.05)
        return (
            model,
            optimizer,
            flipout.GlobalMagnitude(model, optimizer, sparsity=0.5, steps=16, granularity="channel"),
        )

    def steps(parts: Any, first: int, last: int) -> None:
        generator = torch.Generator().manual_seed(0)
        for number in range(last):
            x = torch.randn(16, 12, generator=generator, dtype=torch.float64)
            if number >= first:
                parts[1].zero_grad()
                nn.functional.cross_entropy(parts[0](x), x[:, :4].argmax(1)).backward()
                parts[1].step()

    whole, shrunk = begin(), begin()
    for parts in (whole, shrunk):
        steps(parts, 0, 8)
    before = copy.deepcopy(shrunk[0].state_dict())
    shrunk[2].shrink(X.double())
    assert shrunk[0].recurrent.hidden_size < 8
    for parts in (whole, shrunk):
        steps(parts, 8, 16)
    shrunk[2].expand()
    assert shrunk[0].recurrent.hidden_size == 8
    assert {name: each.shape for name, each in shrunk[0].state_dict().items()} == {
        name: each.shape for name, each in before.items()
    }
    assert all(torch.equal(mask, shrunk[2].masks[name]) for name, mask in whole[2].masks.items())
    assert torch.allclose(whole[0](X.double()), shrunk[0](X.double()))
