"""Linear layers whose zeros come in square blocks, in BSR format."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from flipout.export.sparse_layers import SparseLinear, block_side, sparse_forms


def in_blocks(side: int, shape: tuple[int, int] = (64, 32), share: float = 0.2) -> Tensor:
    torch.manual_seed(0)
    kept = torch.rand(shape[0] // side, shape[1] // side) < share
    kept[0, 0] = True
    return torch.randn(shape) * kept.repeat_interleave(side, 0).repeat_interleave(side, 1)


@pytest.mark.parametrize("side", [4, 8, 16])
def test_the_side_of_blocks_is_found(side: int) -> None:
    assert block_side(in_blocks(side)) == side


def test_scattered_zeros_have_no_blocks() -> None:
    torch.manual_seed(0)
    assert block_side(torch.randn(64, 32) * (torch.rand(64, 32) < 0.1)) is None
    assert block_side(torch.zeros(64, 32)) is None
    assert block_side(in_blocks(4, (60, 30 * 4))[:58]) is None  # 58 rows are no multiple of 4


@pytest.mark.parametrize("bias", [True, False])
def test_a_block_layer_computes_the_same(bias: bool) -> None:
    layer = nn.Linear(32, 64, bias)
    with torch.no_grad():
        layer.weight.copy_(in_blocks(8))
    forms = sparse_forms(layer, torch.randn(3, 32))
    assert set(forms) == {"sparse product", "blocks of 8 x 8"}
    form = forms["blocks of 8 x 8"]
    assert isinstance(form, SparseLinear)
    for shape in ((3, 32), (2, 5, 32), (32,), (0, 32)):
        x = torch.randn(shape)
        torch.testing.assert_close(copy.deepcopy(form)(x), layer(x), rtol=1e-4, atol=1e-5)
    form.load_state_dict({key: 2 * value for key, value in layer.state_dict().items()})
    torch.testing.assert_close(form(x := torch.randn(3, 32)), 2 * layer(x), rtol=1e-4, atol=1e-5)
