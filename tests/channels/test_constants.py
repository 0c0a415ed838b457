"""Constant channels: which layers read them, and what becomes of their weights and biases."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flipout.channels.constants import readers, without_constants
from flipout.channels.record import record
from flipout.export import compact, effective_weights
from tests.channels.networks import randomize


def constants(model: nn.Module, x: Tensor) -> dict[str, list[int]]:
    """For each weight that reads constant channels, which of its inputs they are."""
    recording = record(model.eval(), (x,), functional=True)
    found = readers(model, recording)
    return {each.weight: (~each.constants.isnan()).nonzero().flatten().tolist() for each in found}


@torch.no_grad()
def stacked(*between: nn.Module, padding: int = 0) -> nn.Sequential:
    """Two convolutions, of which the first has two outputs without weights."""
    model = randomize(nn.Sequential(nn.Conv2d(2, 4, 3), *between, nn.Conv2d(4, 3, 3, padding=padding)), 0)
    model.get_parameter("0.weight")[1:3] = 0
    return model.eval().double()  # type: ignore[return-value]


X = torch.randn(2, 2, 9, 9).double()


def test_functions_of_single_channels_keep_constants() -> None:
    for between in (nn.Sigmoid(), nn.BatchNorm2d(4), nn.PReLU(4), nn.MaxPool2d(2), nn.AvgPool2d(2), nn.Upsample(20)):
        assert constants(stacked(between), X) == {"2.weight": [1, 2]}, between


def test_a_constant_is_none_behind_what_mixes_channels_or_meets_borders() -> None:
    padded = nn.Conv2d(4, 4, 1, padding=1)
    for between in (nn.GroupNorm(1, 4), nn.AvgPool2d(3, padding=1), nn.ZeroPad2d(1), nn.Softmax(1)):
        assert constants(stacked(between), X) == {}, between
    assert constants(stacked(padded, nn.AdaptiveAvgPool2d(3)), X) == {"1.weight": [1, 2]}


def test_a_value_that_depends_on_the_size_of_the_input_is_no_constant() -> None:
    """The mean over an image of what is different at its borders is uniform, but another one for another image."""
    model = stacked(padding=1)
    nn.init.zeros_(model.get_parameter("1.weight")[:, [0, 3]])
    head = nn.Sequential(model, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2)).eval().double()
    assert constants(head, X) == {"0.1.weight": [1, 2]}


def test_random_numbers_are_no_constants() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.first(x) * torch.rand(1))  # type: ignore[no-any-return]

    model = Noisy()
    nn.init.zeros_(model.first.weight)
    assert constants(model, torch.randn(2, 3)) == {}


def test_one_constant_stands_for_all_at_borders() -> None:
    model = stacked(nn.Sigmoid(), padding=1)
    smaller = without_constants(model, (X,), {})
    assert smaller is not None
    assert int(smaller.get_parameter("2.weight").flatten(2).any(2).any(0).sum()) == 3
    torch.testing.assert_close(smaller(X), model(X))


def test_a_layer_that_has_none_gets_a_bias() -> None:
    model = randomize(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2, bias=False)), 0).eval().double()
    nn.init.zeros_(model.get_parameter("0.weight")[:4])
    x = torch.randn(4, 3).double()
    small = compact(model, x)
    assert small.get_parameter("2.weight").shape == (2, 1)
    assert small.get_parameter("2.bias").shape == (2,)
    torch.testing.assert_close(small(x), model(x))


def test_a_batch_norm_before_the_first_layer() -> None:
    model = nn.Sequential(nn.BatchNorm2d(2), *stacked(nn.BatchNorm2d(4))).eval().double()
    small = compact(model, X)
    assert [layer.outputs for layer in small.compaction.layers] == [(4, 2), (3, 3)]  # type: ignore[union-attr]
    torch.testing.assert_close(small(X), model(X))


def test_slopes_of_channels() -> None:
    model = stacked(nn.PReLU(4))
    small = compact(model, X)
    assert [layer.outputs for layer in small.compaction.layers] == [(4, 2), (3, 3)]  # type: ignore[union-attr]
    torch.testing.assert_close(small(X), model(X), rtol=1e-9, atol=1e-9)
    assert effective_weights(model, X).layers == {"0.weight": (36, 36), "2.weight": (108, 54)}


class Stacked(nn.Module):
    """Two branches in a new last dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = stacked(), nn.Conv2d(3, 2, 1).double()

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        return self.head(torch.stack([y, 2 * y], -1).amax(-1))  # type: ignore[no-any-return]


def test_a_stack_in_a_new_last_dimension() -> None:
    model = Stacked().eval()
    small = compact(model, X)
    assert small.body[0].out_channels == 2  # type: ignore[union-attr, index]
    torch.testing.assert_close(small(X), model(X))
