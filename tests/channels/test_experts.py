"""Features of stacked experts as channels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout
from tests.helpers import cross_entropy, sgd

transformers = pytest.importorskip("transformers")
SIZES = {
    "hidden_size": 16,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 20,
    "max_position_embeddings": 16,
}


def mixtral() -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = transformers.MixtralForCausalLM(transformers.MixtralConfig(**SIZES, num_local_experts=4))
    return model


def qwen() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(
        **SIZES, num_experts=4, moe_intermediate_size=64, num_experts_per_tok=2, head_dim=4
    )
    model: nn.Module = transformers.Qwen3MoeForCausalLM(config)
    return model


def tokens(step: int) -> Tensor:
    return torch.randint(0, 20, (4, 6), generator=torch.Generator().manual_seed(step))


@pytest.mark.parametrize("build", [mixtral, qwen])
def test_features_of_experts_are_pruned_and_removed(build: Any) -> None:
    model = build()
    optimizer = sgd(model, lr=0.05)
    pruner = flipout.FlipOut(model, optimizer, sparsity=0.5, steps=8, granularity="channel", exclude="lm_head")
    for step in range(8):
        optimizer.zero_grad()
        cross_entropy(model(tokens(step)).logits.flatten(0, 1), tokens(step).flatten()).backward()
        optimizer.step()
    assert pruner.sparsity >= 0.5
    model.eval()
    small: Any = flipout.export.compact(model, {"input_ids": tokens(9)})
    assert type(small) is type(model)
    assert torch.allclose(small(tokens(9)).logits, model(tokens(9)).logits, atol=1e-5)
    experts = small.model.layers[0].mlp.experts
    assert experts.gate_up_proj.shape[1] == 2 * experts.down_proj.shape[2] < 128
    assert experts.down_proj.shape[2] % 8 == 0  # as products of groups need it
    small(tokens(9)).logits.sum().backward()
