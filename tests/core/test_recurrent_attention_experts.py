"""Weights that are not the `weight` of a module: recurrent matrices, those of attention, and stacked experts."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout
from tests.helpers import assert_masked, cross_entropy, sgd, train

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections")
METHODS = [flipout.FlipOut, flipout.GlobalMagnitude, flipout.RigL]


class Sequences(nn.Module):
    """A recurrent layer, an attention and a classifier, on 12 numbers as a sequence of 3 x 4."""

    def __init__(self, recurrent: Any = nn.LSTM, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.recurrent = recurrent(4, 8, batch_first=True, **options)
        width = self.recurrent(torch.zeros(1, 3, 4))[0].shape[2]
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.recurrent(x.view(-1, 3, 4))[0]
        return self.head(self.attention(hidden, hidden, hidden, need_weights=False)[0].mean(1))  # type: ignore[no-any-return]


def pruned(method: Any = flipout.FlipOut, model: nn.Module | None = None, **options: Any) -> Any:
    model = Sequences() if model is None else model
    optimizer = sgd(model, lr=0.05)
    return model, optimizer, method(model, optimizer, **{"sparsity": 0.9, "steps": 30, **options})


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (nn.LSTM(3, 4), ["weight_ih_l0", "weight_hh_l0"]),
        (nn.LSTM(3, 4, proj_size=2), ["weight_ih_l0", "weight_hh_l0", "weight_hr_l0"]),
        (nn.GRU(3, 4, 2), ["weight_ih_l0", "weight_hh_l0", "weight_ih_l1", "weight_hh_l1"]),
        (
            nn.RNN(3, 4, bidirectional=True),
            ["weight_ih_l0", "weight_hh_l0", "weight_ih_l0_reverse", "weight_hh_l0_reverse"],
        ),
        (nn.GRUCell(3, 4), ["weight_ih", "weight_hh"]),
        (nn.MultiheadAttention(4, 2, add_bias_kv=True), ["in_proj_weight", "out_proj.weight"]),
        (
            nn.MultiheadAttention(4, 2, kdim=3),
            ["q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"],
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_names(module: nn.Module, names: list[str]) -> None:
    assert list(flipout.FlipOut(module, sgd(module), sparsity=0.5, steps=9).masks) == names


def test_patterns() -> None:
    model = Sequences()
    chosen = flipout.FlipOut(model, sgd(model), sparsity=0.5, steps=9, include="recurrent", exclude="*_hh_*")
    assert list(chosen.masks) == ["recurrent.weight_ih_l0"]
    chosen.remove()
    rest = flipout.FlipOut(model, sgd(model), sparsity=0.5, steps=9, exclude=["recurrent", "*in_proj_weight"])
    assert list(rest.masks) == ["attention.out_proj.weight", "head.weight"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("options", [{}, {"recurrent": nn.GRU, "bidirectional": True}, {"proj_size": 4}])
def test_counts_and_zeros(method: Any, options: dict[str, Any]) -> None:
    model, optimizer, pruner = pruned(method, Sequences(**options))

    def look() -> None:
        assert_masked(pruner)

    train(model, optimizer, 30, after=look)
    assert pruner.nonzero == round(pruner.prunable * 0.1)
    assert len(pruner.summary().layers) == len(pruner.weights)
    assert "recurrent.weight_hh_l0" in str(pruner.summary())
    x = torch.randn(5, 12)
    model.eval()
    with torch.no_grad():  # in which torch's attention takes another path
        assert torch.allclose(copy.deepcopy(model)(x), model(x))


@pytest.mark.parametrize("method", METHODS)
def test_resuming_gives_the_same_bits(method: Any) -> None:
    whole, optimizer, _ = pruned(method)
    train(whole, optimizer, 30)
    first = pruned(method)
    train(first[0], first[1], 13)
    states = copy.deepcopy([part.state_dict() for part in first])
    second = pruned(method)
    for part, state in zip(second, states, strict=True):
        part.load_state_dict(state)
    train(second[0], second[1], 30, skip=13)
    for one, other in zip(whole.parameters(), second[0].parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_sparse_file(tmp_path: Path) -> None:
    model, optimizer, pruner = pruned()
    train(model, optimizer, 30)
    flipout.export.save(model, tmp_path / "model.safetensors")
    fresh = Sequences()
    fresh.load_state_dict(flipout.export.load(tmp_path / "model.safetensors"))
    assert all(torch.equal(tensor, fresh.state_dict()[name]) for name, tensor in model.state_dict().items())
    counted = flipout.export.effective_weights(model, torch.randn(2, 12))
    assert (counted.prunable, counted.nonzero) == (pruner.prunable, pruner.nonzero)


def test_one_shot() -> None:
    batches = [torch.randn(8, 12) for _ in range(2)]
    model = Sequences()
    report = flipout.prune(model, batches, sparsity=0.5, method="magnitude")
    assert report.nonzero == round(report.prunable * 0.5)
    assert {layer.name for layer in report.layers} == {name for name, p in model.named_parameters() if p.ndim > 1}
    assert sum(int((p != 0).sum()) for p in model.parameters() if p.ndim > 1) == report.nonzero
    assert "nan" not in str(report)
    for method in ("obs", "wanda"):
        model = Sequences()
        with pytest.warns(flipout.CoverageWarning, match=r"recurrent\.weight_ih_l0.*attention\.out_proj"):
            report = flipout.prune(model, batches, sparsity=0.5, method=method)
        assert [layer.name for layer in report.layers] == ["head.weight"]
        with pytest.raises(ValueError, match=r"recurrent\.weight_ih_l0.*magnitude"):
            flipout.prune(model, batches, sparsity=0.5, method=method, include="*")


def mixtral(**options: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
        vocab_size=20,
        max_position_embeddings=16,
        **options,
    )
    torch.manual_seed(0)
    model: nn.Module = transformers.MixtralForCausalLM(config)
    return model


def tokens(step: int) -> Tensor:
    return torch.randint(0, 20, (4, 6), generator=torch.Generator().manual_seed(step))


def train_tokens(parts: Any, first: int, last: int) -> None:
    model, optimizer = parts[:2]
    for step in range(first, last):
        optimizer.zero_grad()
        logits = model(tokens(step)).logits
        cross_entropy(logits.flatten(0, 1), tokens(step).flatten()).backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("granularity", "kept"), [("weight", 0.3), ("kernel", 0.3), ((4, 1), 0.3), ("2:4", 0.5)], ids=str
)
def test_stacked_experts(granularity: Any, kept: float) -> None:
    model = mixtral()
    model, optimizer, pruner = pruned(model=model, sparsity=1 - kept, granularity=granularity, steps=12)
    train_tokens((model, optimizer), 0, 12)
    experts = {name: mask for name, mask in pruner.masks.items() if "experts" in name}
    assert [name.rpartition(".")[2] for name in experts] == ["gate_up_proj", "down_proj"]
    assert_masked(pruner)
    assert abs(pruner.nonzero - kept * pruner.prunable) <= 4
    for mask in experts.values():
        experts_of, rows, columns = mask.shape
        if granularity == "2:4":
            assert bool((mask.view(experts_of, rows, columns // 4, 4).sum(3) == 2).all())
        if granularity == (4, 1):
            blocks = mask.view(experts_of, rows // 4, 4, columns)
            assert torch.equal(blocks.all(2), blocks.any(2))
    layer = next(layer for layer in pruner.summary().layers if "gate_up" in layer.name)
    assert (layer.inputs, layer.outputs) == (4 * 16, 4 * 48)


def test_experts_resume_with_the_same_bits() -> None:
    whole = pruned(model=mixtral(), steps=12)
    train_tokens(whole, 0, 12)
    first = pruned(model=mixtral(), steps=12)
    train_tokens(first, 0, 5)
    states = copy.deepcopy([part.state_dict() for part in first])
    second = pruned(model=mixtral(), steps=12)
    for part, state in zip(second, states, strict=True):
        part.load_state_dict(state)
    train_tokens(second, 5, 12)
    for one, other in zip(whole[0].parameters(), second[0].parameters(), strict=True):
        assert torch.equal(one, other)


def test_experts_in_one_shot() -> None:
    model = mixtral()
    report = flipout.prune(model, [{"input_ids": tokens(0)}], sparsity=0.5, method="magnitude", scope="output")
    assert report.nonzero == round(report.prunable * 0.5)
    assert sum("experts" in layer.name for layer in report.layers) == 2
