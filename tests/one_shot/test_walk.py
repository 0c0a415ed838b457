"""Layers in the order of their calls, and chains of blocks that are not computed again."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout
from flipout.one_shot import calibration
from flipout.one_shot.calibration import Walk, calibrating
from flipout.one_shot.layers import layers_of
from flipout.runtime.batches import Batches
from flipout.weights import find_weights

from .networks import perceptron, same, state, vectors


def walk_of(model: nn.Module, batches: Any) -> Walk:
    layers = layers_of(model, find_weights(model, None, None, None), 2048)
    with calibrating(model, norms=False):
        return Walk(model, Batches(batches, model), layers)


class Skips(nn.Module):
    """Blocks in a list, of which the outputs of one are used twice."""

    def __init__(self, *, skips: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.skips = nn.ModuleList([nn.Linear(12, 12) for _ in range(4)]), skips

    def forward(self, x: Tensor) -> Tensor:
        first = x = self.blocks[0](x)
        for block in self.blocks[1:]:
            x = block(x)
        return x + first if self.skips else x


def test_a_chain_is_found_only_where_blocks_can_be_left_out() -> None:
    assert len(walk_of(Skips(skips=False), vectors()).blocks) == 4
    assert walk_of(Skips(skips=True), vectors()).blocks == []
    assert len(walk_of(perceptron(), vectors()).blocks) == 5


def test_the_network_is_the_same_with_and_without_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    model = perceptron((12, 16, 16, 16, 4))
    other = copy.deepcopy(model)
    flipout.prune(model, vectors(), sparsity=0.6)
    monkeypatch.setattr(calibration, "CACHE", 0)
    flipout.prune(other, vectors(), sparsity=0.6)
    assert same(model, state(other))


def test_in_a_chain_every_block_is_computed_a_few_times() -> None:
    computed: list[nn.Module] = []
    model = perceptron((12, *[8] * 12, 4))
    layers = len(model)

    def counted(module: nn.Module) -> Callable[[Tensor], Tensor]:
        usual = module.forward

        def forward(x: Tensor) -> Tensor:
            computed.append(module)
            result: Tensor = usual(x)
            return result

        return forward

    for module in model:
        module.forward = counted(module)
    flipout.prune(model, vectors(2), sparsity=0.5, scope="layer", method="wanda")
    assert len(computed) < 2 * 4 * layers  # without a chain: a quarter of their square for each of two batches


def test_layers_with_the_same_inputs_are_observed_together() -> None:
    transformers = pytest.importorskip("transformers")
    model = llama(transformers)
    walk = walk_of(model, tokens())
    assert len(walk.blocks) == 3
    names = [[layer.name.split(".", 3)[-1] for layer in stage.layers] for stage in walk.stages[:4]]
    assert names == [
        ["self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"],
        ["self_attn.o_proj.weight"],
        ["mlp.gate_proj.weight", "mlp.up_proj.weight"],
        ["mlp.down_proj.weight"],
    ]
    assert [stage.level for stage in walk.stages] == [0] * 4 + [1] * 4 + [2] * 4 + [3]
    assert len(walk.stages[0].alike) == 2


def llama(transformers: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    return transformers.LlamaForCausalLM(config).eval()


def gpt2(transformers: Any) -> Any:
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4)).eval()


def qwen(transformers: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return transformers.Qwen2ForCausalLM(config).eval()


def tokens() -> list[dict[str, Tensor]]:
    random = torch.Generator().manual_seed(0)
    return [{"input_ids": torch.randint(64, (4, 16), generator=random)} for _ in range(3)]


@pytest.mark.parametrize("make", [llama, gpt2, qwen])
@pytest.mark.parametrize("method", ["wanda", "obs"])
def test_a_decoder_is_pruned_block_by_block(make: Any, method: Any) -> None:
    model = make(pytest.importorskip("transformers"))
    original, batches = copy.deepcopy(model), [{**batch, "labels": batch["input_ids"]} for batch in tokens()]
    report = flipout.prune(model, batches, sparsity=0.5, method=method, scope="layer")
    assert report.sparsity == pytest.approx(0.5, abs=1e-4)
    assert report.nonzero == sum(int(model.get_parameter(layer.name).count_nonzero()) for layer in report.layers)
    with torch.no_grad():
        assert torch.isfinite(model(**tokens()[0]).logits).all()
        assert not torch.equal(model(**tokens()[0]).logits, original(**tokens()[0]).logits)


def test_blocks_after_the_first_see_the_pruned_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    model, other = llama(transformers), llama(transformers)
    flipout.prune(model, tokens(), sparsity=0.5, scope="layer")
    monkeypatch.setattr(calibration.Record, "chain", lambda self: [])
    flipout.prune(other, tokens(), sparsity=0.5, scope="layer")
    for (name, one), two in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, msg=name)


def test_heads_and_features_of_a_decoder() -> None:
    model = llama(pytest.importorskip("transformers"))
    report = flipout.prune(model, tokens(), sparsity=0.3, granularity="channel", exclude="lm_head")
    assert 0.3 <= report.sparsity < 0.4
    small = flipout.export.compact(model, tokens()[0]["input_ids"])
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters())
