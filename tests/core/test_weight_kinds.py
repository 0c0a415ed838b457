"""Weights in the forms they come in: transposed, normalized, parametrized, adapted, stacked by expert."""

from __future__ import annotations

import sys
import types
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

import flipout
from tests.helpers import assert_masked, mlp, sgd, train


@pytest.mark.filterwarnings("ignore:.*spectral_norm:FutureWarning")
@pytest.mark.parametrize(
    ("normalize", "name"),
    [
        (parametrizations.spectral_norm, "0.parametrizations.weight.original"),
        (nn.utils.spectral_norm, "0.weight_orig"),
    ],
)
def test_a_weight_under_spectral_norm_ends_with_the_zeros(normalize: Any, name: str) -> None:
    model = mlp()
    normalize(model[0])
    optimizer = sgd(model)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.9, steps=20)
    assert list(pruner.masks) == [name, "2.weight", "4.weight"]
    train(model, optimizer, 20)
    assert_masked(pruner)
    assert pruner.nonzero == 35
    model(torch.randn(2, 12))  # the old form computes the weight in the forward pass
    weight: Any = model[0].weight
    assert torch.equal(weight != 0, pruner.masks[name])


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize("normalize", [parametrizations.weight_norm, nn.utils.weight_norm])
def test_weight_norm_is_left_out_by_name(normalize: Any) -> None:
    """A row that has lost its last weight would be NaN."""
    model = mlp()
    normalize(model[2])
    with pytest.warns(flipout.CoverageWarning, match=r"2: .*\(WeightNorm\)"):
        pruner = flipout.FlipOut(model, sgd(model), sparsity=0.9, steps=10)
    assert list(pruner.masks) == ["0.weight", "4.weight"]
    assert [part.kind for part in pruner.coverage().left_out if part.size == 128] == ["parametrized"]
    pruner.remove()
    with warnings.catch_warnings():
        warnings.simplefilter("error", flipout.CoverageWarning)
        flipout.FlipOut(model, sgd(model), sparsity=0.9, steps=10, exclude="2").remove()


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_the_other_matrices_of_a_recurrent_layer_with_weight_norm_are_pruned() -> None:
    lstm = nn.LSTM(4, 6)
    nn.utils.weight_norm(lstm, "weight_hh_l0")
    with pytest.warns(flipout.CoverageWarning, match=r"weight_hh_l0 .*\(WeightNorm\)"):
        pruner = flipout.FlipOut(lstm, sgd(lstm), sparsity=0.5, steps=10)
    assert list(pruner.masks) == ["weight_ih_l0"]


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).T


def test_a_parametrized_weight_is_left_out_by_name() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 4))
    parametrize.register_parametrization(model[0], "weight", Symmetric())
    with pytest.warns(flipout.CoverageWarning, match=r"0: .*\(Symmetric\)"):
        assert list(flipout.FlipOut(model, sgd(model), sparsity=0.5, steps=10).masks) == ["1.weight"]
    one = parametrizations.orthogonal(nn.Linear(4, 4))
    with pytest.raises(ValueError, match=r"parametrization \(Orthogonal\)"):
        flipout.FlipOut(one, sgd(one), sparsity=0.5, steps=10)


def test_a_bias_or_embedding_may_be_parametrized() -> None:
    model = nn.Sequential(nn.Embedding(5, 6), nn.Linear(6, 6))
    parametrize.register_parametrization(model[0], "weight", nn.Identity())
    parametrize.register_parametrization(model[1], "bias", nn.Identity())
    assert list(flipout.FlipOut(model, sgd(model), sparsity=0.5, steps=10).masks) == ["1.weight"]


def test_what_torch_has_pruned_is_refused_by_name() -> None:
    model = mlp()
    prune.l1_unstructured(model[2], "weight", 0.5)
    with pytest.raises(ValueError, match=r"^2 .*prune\.remove\("):
        flipout.FlipOut(model, sgd(model), sparsity=0.9, steps=10)


class Conv1D(nn.Module):
    """As in `transformers.pytorch_utils`."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)


def test_a_transposed_matrix_is_a_linear_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(Conv1D(12, 8), nn.ReLU(), nn.Linear(8, 4))
    with pytest.warns(flipout.CoverageWarning):
        assert flipout.FlipOut(model, sgd(model), sparsity=0.5, steps=9).prunable == 32
    imported = types.ModuleType("transformers.pytorch_utils")
    imported.Conv1D = Conv1D  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers.pytorch_utils", imported)
    optimizer = sgd(model)
    pruner = flipout.GlobalMagnitude(model, optimizer, sparsity=0.5, steps=20)
    train(model, optimizer, 20)
    assert (pruner.prunable, pruner.nonzero) == (128, 64)
    pruner.weights[0].mask[:, :2] = False
    pruner.weights[0].zero()
    first, second = pruner.summary().layers
    assert first.transposed
    assert not second.transposed
    assert (first.inputs, first.outputs) == (12, 8)
    assert first.dead_outputs is not None
    assert first.dead_outputs >= 2
    assert "12 x 8 (in x out)" in str(pruner.summary())


class Experts(nn.Module):
    """A mixture of experts with stacked weights, as in Mixtral: one parameter for all experts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.Parameter(torch.randn(3, 12, 16) / 4)
        self.down = nn.Parameter(torch.randn(3, 16, 4) / 4)
        self.router = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.einsum("bi,eih->beh", x, self.up).relu()
        out: Tensor = torch.einsum("beh,eho,be->bo", hidden, self.down, self.router(x).softmax(1))
        return out


def test_experts_can_be_included() -> None:
    model = Experts()
    text = r"covers 36 of 807 parameters \(4\.5%\); left out: up \(576\), down \(192\), biases.*\(3\)\. .*include="
    with pytest.warns(flipout.CoverageWarning, match=text):
        flipout.FlipOut(model, sgd(model), sparsity=0.5, steps=10).remove()
    optimizer = sgd(model)
    pruner = flipout.FlipOut(model, optimizer, sparsity=0.9, steps=30, include=["up", "down"])
    train(model, optimizer, 30)
    assert_masked(pruner)
    assert (pruner.prunable, pruner.nonzero) == (768, 77)
    assert "3 x 12 x 16" in str(pruner.summary())
    assert pruner.summary().layers[0].inputs is None


def test_coverage_says_what_is_left_out() -> None:
    model = nn.Sequential(nn.Embedding(100, 6), nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 6))
    model[3].requires_grad_(False)
    pruner = flipout.FlipOut(model, sgd(model), sparsity=0.5, steps=10)
    coverage = pruner.coverage()
    assert (coverage.covered, coverage.parameters) == (36, 696)
    assert {part.name: part.kind for part in coverage.left_out} == {
        "0.weight": "embedding",
        "1.bias": "vector",
        "2.weight": "vector",
        "2.bias": "vector",
        "3.weight": "frozen",
        "3.bias": "vector",
    }
    assert str(coverage) == (
        "36 of 696 parameters (5.2%); left out: 0.weight (600, embedding), 3.weight (36, frozen), biases, norms and "
        "scalars (24)"
    )
    whole = nn.Linear(3, 3, bias=False)
    assert str(flipout.FlipOut(whole, sgd(whole), sparsity=0.5, steps=10).coverage()) == "9 of 9 parameters (100.0%)"


def test_a_warning_names_few_of_many_and_exclude_silences_it() -> None:
    model = nn.Sequential(*(nn.Bilinear(4, 4, 4) for _ in range(10)), nn.Linear(4, 4))
    with pytest.warns(flipout.CoverageWarning, match=r"0\.weight \(64\), .*, 4 more \(256\), biases") as caught:
        flipout.FlipOut(model, sgd(model), sparsity=0.5, steps=10).remove()
    assert [w.filename for w in caught if w.category is flipout.CoverageWarning] == [__file__]
    flipout.FlipOut(model, sgd(model), sparsity=0.5, steps=10, exclude="?.weight").remove()
    flipout.FlipOut(model, sgd(model), sparsity=0.5, steps=10, include="10").remove()


def test_adapters_are_left_alone() -> None:
    model = nn.ModuleDict({"base": nn.Linear(6, 6), "lora_A": nn.Linear(6, 2), "lora_B": nn.Linear(2, 6)})
    assert list(flipout.FlipOut(model, sgd(model), sparsity=0.5, steps=10).masks) == ["base.weight"]
    model["base"].requires_grad_(False)
    with pytest.raises(ValueError, match=r"LoRA"):
        flipout.FlipOut(model, sgd(model), sparsity=0.5, steps=10)
    chosen = flipout.FlipOut(model, sgd(model), sparsity=0.5, steps=10, include="lora_*")
    assert list(chosen.masks) == ["lora_A.weight", "lora_B.weight"]
