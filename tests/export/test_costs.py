"""What a network costs: multiply-adds, activations and bytes, against counts by hand and torch's FLOP counter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.utils.flop_counter import FlopCounterMode

from flipout.export.costs import MultiplyAdds, count_multiply_adds, format_bytes, peak_activation_bytes


def zero_all(network: nn.Module) -> None:
    for parameter in network.parameters():
        nn.init.zeros_(parameter)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(6, 4), (2, 3, 6)),
        (nn.Linear(6, 4), (6,)),
        (nn.Conv1d(4, 6, 3, groups=2), (2, 4, 9)),
        (nn.Conv2d(4, 6, 3, stride=2, padding=1), (2, 4, 9, 8)),
        (nn.Conv2d(4, 6, 3, dilation=2, padding=1, padding_mode="circular"), (2, 4, 9, 8)),
        (nn.Conv3d(2, 3, 3), (1, 2, 5, 6, 7)),
        (nn.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 5, 4)),
        (nn.LSTM(4, 6, 2, bidirectional=True), (3, 2, 4)),
        (nn.GRU(4, 6), (3, 2, 4)),
    ],
    ids=repr,
)
def test_a_layer_of_zeros_skips_all_its_multiply_adds(layer: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    before = count_multiply_adds(layer, (x,))
    assert before.nonzero == before.dense > 0
    zero_all(layer)
    assert count_multiply_adds(layer, (x,)) == MultiplyAdds(before.dense, 0)


def encoder(width: int, heads: int, feed_forward: int, layers: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, heads, feed_forward, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()


def test_a_transformer_by_hand() -> None:
    """The fused kernel of a whole layer hides its products from torch's counter, which counts nothing."""
    network, x = encoder(32, 4, 64, 2), torch.randn(1, 9, 32)
    products = 3 * 32 * 32 + 32 * 32 + 2 * 32 * 64
    dense = 2 * (9 * products + 2 * 9 * 9 * 32)
    assert count_multiply_adds(network, (x,)) == MultiplyAdds(dense, dense)
    assert torch.backends.mha.get_fastpath_enabled()
    for name, parameter in network.named_parameters():
        if "linear1" in name or "in_proj" in name:
            nn.init.zeros_(parameter)
    assert count_multiply_adds(network, (x,)).nonzero == dense - 2 * 9 * (3 * 32 * 32 + 32 * 64)


def test_an_lstm_by_hand() -> None:
    network, x = nn.LSTM(10, 20, 2, batch_first=True), torch.randn(3, 7, 10)
    dense = 3 * 7 * 4 * 20 * (10 + 20 + 20 + 20)
    assert count_multiply_adds(network, (x,)) == MultiplyAdds(dense, dense)
    nn.init.zeros_(network.get_parameter("weight_hh_l1")[:13])
    assert count_multiply_adds(network, (x,)) == MultiplyAdds(dense, dense - 3 * 7 * 13 * 20)


class Attention(nn.Module):
    """Calls scaled dot-product attention, which is one kernel on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.project(x).view(len(x), -1, 2, 12).transpose(1, 2).chunk(3, -1)
        return functional.scaled_dot_product_attention(query, key, value)


def test_attention_by_hand() -> None:
    dense = 6 * 8 * 24 + 2 * 2 * 6 * 6 * 4
    assert count_multiply_adds(Attention(), (torch.randn(1, 6, 8),)) == MultiplyAdds(dense, dense)


class Unusual(nn.Module):
    """Uses its parameters without a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.shift = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.zeros(1, 4))
        self.embed, self.norm = nn.Embedding(10, 4), nn.LayerNorm((3, 4))

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.norm(self.embed(tokens)) + self.shift
        x = torch.cat([x, self.shift.expand(len(x), 1, 4)], 1)
        x = torch.where(x > 0, x, self.shift)
        state = self.weight.new_zeros(4)  # not a weight, though it is zero
        return x @ self.weight, torch.einsum("bij,jk->bik", x, self.weight), state @ self.weight


@pytest.mark.parametrize("inference", [False, True])
def test_products_without_a_layer(inference: bool) -> None:
    network, tokens = Unusual(), torch.randint(10, (2, 3))
    dense = 2 * 2 * 4 * 16 + 16
    with torch.inference_mode(inference):
        assert count_multiply_adds(network, (tokens,)) == MultiplyAdds(dense, dense)
        nn.init.zeros_(network.weight[0, :2])
        assert count_multiply_adds(network, (tokens,)) == MultiplyAdds(dense, dense * 14 // 16)


class OddColumns(nn.Module):
    """A parametrization that computes a weight with zeros from a weight without."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight * (torch.arange(weight.shape[1]) % 2)


def test_the_weight_may_be_computed() -> None:
    layer = parametrize.register_parametrization(nn.Linear(4, 6), "weight", OddColumns())
    assert count_multiply_adds(layer, (torch.randn(5, 4),)) == MultiplyAdds(5 * 24, 5 * 12)


def test_what_has_no_formula_is_named() -> None:
    found = count_multiply_adds(nn.Bilinear(3, 4, 5), (torch.randn(2, 3), torch.randn(2, 4)))
    assert found == MultiplyAdds(0, 0, ("aten._trilinear",))


def test_convolutions_agree_with_the_counter_of_torch() -> None:
    layers = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=4), nn.ConvTranspose2d(8, 2, 3, stride=2)
    network, x = nn.Sequential(*layers), torch.randn(2, 3, 9, 9)
    with FlopCounterMode(display=False) as counter:
        network(x)
    assert count_multiply_adds(network, (x,)).dense == counter.get_total_flops() // 2


class Residual(nn.Module):
    """Keeps its input of 400 bytes alive while two more of that size are made."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * 2).exp() + x


def test_peak_activations_by_hand() -> None:
    x = torch.randn(1, 100)
    # Each operation needs its inputs, its output, and the tensors that are read later.
    assert peak_activation_bytes(nn.Identity(), (x,)) == 400
    assert peak_activation_bytes(nn.Sequential(nn.ReLU(inplace=True)), (x,)) == 400
    assert peak_activation_bytes(nn.Sequential(nn.Linear(100, 50), nn.Flatten()), (x,)) == 600
    assert peak_activation_bytes(Residual(), (x,)) == 1200


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (44_745_400, "44.7 MB"), (5 * 10**12, "5,000.0 GB")],
)
def test_sizes_as_text(size: int, text: str) -> None:
    assert format_bytes(size) == text
