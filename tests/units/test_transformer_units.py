"""Heads and feed-forward features of Hugging Face's transformers: pruned whole, and removed by compaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout
from flipout import export
from flipout.channels.graph import ChannelGraph

transformers = pytest.importorskip("transformers")

SMALL: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}


def bert() -> tuple[nn.Module, Tensor]:
    config = transformers.BertConfig(**SMALL, vocab_size=50, max_position_embeddings=16)
    return transformers.BertForSequenceClassification(config), torch.randint(50, (2, 7))


def gpt2() -> tuple[nn.Module, Tensor]:
    config = transformers.GPT2Config(
        n_embd=16, n_layer=2, n_head=4, vocab_size=50, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config), torch.randint(50, (2, 7))


def vit() -> tuple[nn.Module, Tensor]:
    config = transformers.ViTConfig(**SMALL, image_size=16, patch_size=8)
    return transformers.ViTForImageClassification(config), torch.randn(2, 3, 16, 16)


def llama() -> tuple[nn.Module, Tensor]:
    config = transformers.LlamaConfig(
        **SMALL, vocab_size=50, num_key_value_heads=2, max_position_embeddings=16, head_dim=4
    )
    return transformers.LlamaForCausalLM(config), torch.randint(50, (2, 7))


MODELS = [bert, gpt2, vit, llama]
Maker = Callable[[], tuple[nn.Module, Tensor]]


def train(model: nn.Module, x: Tensor, steps: int, method: Any, **options: Any) -> flipout.Pruner:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    pruner: flipout.Pruner = method(model, optimizer, steps=steps, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).logits.square().mean().backward()
        optimizer.step()
    return pruner


@pytest.mark.parametrize("make", MODELS)
def test_heads_and_features_are_sets(make: Maker) -> None:
    torch.manual_seed(0)
    model, x = make()
    graph = ChannelGraph.of(model, (x,))
    attention = {bert: "query", gpt2: "c_attn", vit: "q_proj", llama: "q_proj"}[make]
    name = next(name for name in graph.tensors if name.endswith(f"{attention}.weight"))
    heads = graph.tensors[name][1 if make is gpt2 else 0]
    assert len(heads.unique()) == (2 if make is llama else 4)  # two groups of two query heads
    assert (heads != 0).all()


@pytest.mark.filterwarnings("ignore::flipout.ChannelWarning")
@pytest.mark.parametrize("method", [flipout.FlipOut, flipout.GlobalMagnitude])
@pytest.mark.parametrize("make", MODELS)
def test_whole_heads_and_features_are_pruned_and_compacted(make: Maker, method: Any) -> None:
    torch.manual_seed(0)
    model, x = make()
    pruner = train(model, x, 12, method, sparsity=0.3, granularity="channel")
    asked = pruner.plan()[-1].nonzero
    assert asked is not None
    assert 0.8 * asked < pruner.nonzero <= asked
    model.eval()
    expected = model(x).logits
    small: Any = export.compact(model, x)
    torch.testing.assert_close(small(x).logits, expected, rtol=1e-4, atol=1e-5)
    gone = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in small.parameters())
    assert gone >= pruner.prunable - pruner.nonzero  # the biases go too
    assert type(small) is type(model)
    assert [name for name, _ in small.named_parameters()] == [name for name, _ in model.named_parameters()]
    norms = [m for m in model.modules() if "Norm" in type(m).__name__]
    assert [m.weight.shape for m in norms] == [m.weight.shape for m in small.modules() if "Norm" in type(m).__name__]


def test_what_is_not_followed_is_named_in_a_warning() -> None:
    torch.manual_seed(0)
    model, x = vit()
    with pytest.warns(flipout.ChannelWarning, match="patch_embeddings"):
        pruner = train(model, x, 8, flipout.FlipOut, sparsity=0.3, granularity="channel")
    assert "patch_embeddings" in str(pruner.summary())


@pytest.mark.parametrize("make", MODELS)
def test_a_tiny_transformer_trains_with_a_pattern(make: Maker) -> None:
    torch.manual_seed(0)
    model, x = make()
    exclude = {vit: ["*patch_embeddings*"]}.get(make, [])
    pruner = train(model, x, 12, flipout.GlobalMagnitude, sparsity=0.5, granularity="2:4", exclude=exclude)
    for weight in pruner.weights:
        values = weight.parameter.detach()
        rows = values.T if type(weight.module).__name__ == "Conv1D" else values
        assert ((rows.reshape(len(rows), -1, 4) != 0).sum(2) == 2).all(), weight.name
