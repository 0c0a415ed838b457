"""Hugging Face models after compaction: their class, config, outputs and generation, and files of both kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import torch

import flipout
from flipout import export

hf = pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::flipout.ChannelWarning")]

SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
TEXT: dict[str, Any] = {**SMALL, "vocab_size": 60, "max_position_embeddings": 32}


def llama() -> Any:
    torch.manual_seed(0)
    return hf.LlamaForCausalLM(hf.LlamaConfig(**TEXT, num_key_value_heads=2))


def bert() -> Any:
    torch.manual_seed(0)
    return hf.BertForSequenceClassification(hf.BertConfig(**TEXT))


def compacted(model: Any, scope: Literal["global", "layer"], exclude: str | None = None) -> tuple[Any, dict[str, Any]]:
    inputs = {"input_ids": torch.randint(60, (2, 7))}
    flipout.prune(
        model,
        [inputs],
        sparsity=0.4,
        granularity="channel",
        method="magnitude",
        scope=scope,
        exclude=exclude,
    )
    return export.compact(model, inputs), inputs


def test_a_config_states_the_sizes_if_all_layers_are_alike(tmp_path: Path) -> None:
    small, inputs = compacted(llama(), "layer")
    fitted: Any = export.fit_config(small, inputs)
    assert fitted.config.intermediate_size < 96
    assert fitted.config.num_attention_heads < 4
    fitted.save_pretrained(tmp_path)
    again = hf.LlamaForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(again(**inputs).logits, small.eval()(**inputs).logits)
        tokens = small.generate(inputs["input_ids"], max_new_tokens=4, do_sample=False, pad_token_id=0)
        assert torch.equal(
            again.generate(inputs["input_ids"], max_new_tokens=4, do_sample=False, pad_token_id=0), tokens
        )


@pytest.mark.parametrize("make", [llama, bert])
def test_our_file_holds_sizes_that_a_config_cannot(make: Any, tmp_path: Path) -> None:
    small, inputs = compacted(make(), "global")
    before = small.config.to_dict()
    assert export.fit_config(small, inputs, slack=0.0) is None
    assert small.config.to_dict() == before
    export.save_compacted(small, tmp_path / "small.safetensors")
    again = export.load_compacted(tmp_path / "small.safetensors", make).eval()
    assert type(again) is type(small)
    with torch.no_grad():
        assert torch.equal(again(**inputs).logits, small.eval()(**inputs).logits)


def test_a_model_without_a_config_is_named() -> None:
    with pytest.raises(TypeError, match="config"):
        export.fit_config(torch.nn.Linear(3, 3), torch.randn(1, 3))
