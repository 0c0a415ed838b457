"""2:4 weights: which layers qualify, and that torch's own conversion takes them (the kernels need a GPU)."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.sparse._semi_structured_conversions import (
    sparse_semi_structured_from_dense_cutlass,
    sparse_semi_structured_to_dense_cutlass,
)
from torch.sparse.semi_structured import SparseSemiStructuredTensorCUTLASS

import flipout
from flipout import export
from flipout.export.semi_structured import SHAPES


def pruned() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 96), nn.ReLU(), nn.Linear(96, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.5, steps=8, granularity="2:4", exclude="4")
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.randn(4, 64)).square().mean().backward()
        optimizer.step()
    pruner.remove()
    return model


def test_the_report_names_what_qualifies_and_why_the_rest_does_not() -> None:
    report = export.check_semi_structured(pruned())
    assert report.accepted == ("0", "2")
    assert report.refused == {"4": "its shape (10, 96) is not a multiple of (32, 64)"}
    dense = export.check_semi_structured(nn.Sequential(nn.Linear(64, 32)))
    assert "512 groups of four have more than two weights: prune with granularity='2:4'" in str(dense)


def test_the_shapes_are_those_of_torch() -> None:
    constraints = SparseSemiStructuredTensorCUTLASS._DTYPE_SHAPE_CONSTRAINTS
    known = {kind: (c.sparse_min_rows, c.sparse_min_cols) for kind, c in constraints.items()}
    assert {kind: shape for kind, shape in known.items() if kind != torch.float32} == SHAPES


def test_float32_is_refused_because_torch_would_drop_weights() -> None:
    weight = torch.randn(32, 64)
    weight.view(32, -1, 4)[..., 2:] = 0  # 2:4, with both weights in the first pair
    packed, meta = sparse_semi_structured_from_dense_cutlass(weight)
    assert not torch.equal(sparse_semi_structured_to_dense_cutlass(packed, meta), weight)
    with pytest.raises(ValueError, match="float32"):
        export.check_semi_structured(pruned(), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_conversion_of_torch_takes_the_weights_and_gives_them_back(dtype: torch.dtype) -> None:
    model = pruned()
    for name in export.check_semi_structured(model, dtype).accepted:
        weight = model.get_parameter(f"{name}.weight").detach().to(dtype)
        packed, meta = sparse_semi_structured_from_dense_cutlass(weight)
        assert packed.shape == (weight.shape[0], weight.shape[1] // 2)
        assert torch.equal(sparse_semi_structured_to_dense_cutlass(packed, meta), weight)


def test_without_a_gpu_the_error_says_what_is_missing() -> None:
    with pytest.raises(RuntimeError, match="GPU"):
        export.to_semi_structured(pruned())
    with pytest.raises(ValueError, match="Sequential"):
        export.to_semi_structured(nn.Sequential(nn.Linear(64, 32)))
    with pytest.raises(ValueError, match="float64"):
        export.check_semi_structured(pruned(), torch.float64)
