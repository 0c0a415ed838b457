"""Channels that norms mix: the residual stream of transformers, and response norms."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import flipout
from flipout import export
from flipout.channels.graph import ChannelGraph
from flipout.channels.narrow_norms import narrowed, tensor_shapes

WIDTH = 12


def compact(model: nn.Module, x: Tensor) -> Any:
    return export.compact(model, x)


class OwnRMSNorm(nn.Module):
    """As Hugging Face writes it."""

    def __init__(self, size: int, offset: float = 0) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.randn(size)), 1e-3
        self.offset = int(offset)

    def forward(self, x: Tensor) -> Any:
        x = x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (self.offset + self.weight) * x


class ResponseNorm(nn.Module):
    """As in ConvNeXtV2, with channels first or last."""

    def __init__(self, size: int, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim
        shape = [size if each == dim else 1 for each in range(-4, 0)]
        self.weight, self.bias = (nn.Parameter(torch.randn(shape)) for _ in range(2))

    def forward(self, x: Tensor) -> Any:
        places = [dim for dim in range(-3, 0) if dim != self.dim]
        norm = torch.linalg.vector_norm(x, dim=places, keepdim=True)
        return self.weight * (x * norm / (norm.mean(self.dim, keepdim=True) + 1e-6)) + self.bias + x


NORMS: dict[str, Callable[..., Any]] = {
    "layer norm": nn.LayerNorm,
    "layer norm without bias": lambda size: nn.LayerNorm(size, bias=False, eps=0.1),
    "rms norm": nn.RMSNorm,
    "rms norm with epsilon": lambda size: nn.RMSNorm(size, eps=0.1),
    "own rms norm": OwnRMSNorm,
    "rms norm with an offset": lambda size: OwnRMSNorm(size, 1),
    "response norm": ResponseNorm,
    "response norm, channels first": lambda size: ResponseNorm(size, -3),
}


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(NORMS)), st.integers(2, 20), st.data())
def test_a_narrow_norm_computes_what_the_whole_one_does_with_zeros(name: str, size: int, data: st.DataObject) -> None:
    kept = sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=size - 1)))
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    norm = NORMS[name](size).double()
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    dim = getattr(norm, "dim", -1)
    shape = [size if each == dim else 3 for each in range(-4, 0)]
    gone = torch.ones(size, dtype=torch.bool).index_fill_(0, torch.tensor(kept), False)
    x = torch.randn(shape, dtype=torch.float64).index_fill_(dim, gone.nonzero().flatten(), 0)
    x = x * data.draw(st.sampled_from([1e-3, 1.0, 100.0]))
    expected = norm(x).index_select(dim, torch.tensor(kept))
    smaller = copy.deepcopy(norm)
    for parameter in smaller.parameters():
        own = max(range(parameter.ndim), key=lambda place: parameter.shape[place])
        parameter.data = parameter.data.index_select(own, torch.tensor(kept))
    smaller = narrowed(smaller, dim, tensor_shapes(norm))
    torch.testing.assert_close(smaller(x.index_select(dim, torch.tensor(kept))), expected, rtol=1e-5, atol=1e-6)
    assert [name for name, _ in smaller.named_parameters()] == [name for name, _ in norm.named_parameters()]


@pytest.mark.parametrize("name", ["rms norm", "rms norm with epsilon", "own rms norm"])
def test_an_rms_norm_keeps_its_class(name: str) -> None:
    norm = NORMS[name](8)
    shapes = tensor_shapes(norm)
    norm.weight.data = norm.weight.data[:3]
    assert narrowed(norm, -1, shapes) is norm


class LimitedNorm(nn.Module):
    """A norm whose one number is no epsilon."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.least = nn.Parameter(torch.randn(size)), -1.0

    def forward(self, x: Tensor) -> Any:
        return self.weight * x.clamp(min=self.least) / (1 + x.abs().sum(-1, keepdim=True))


def test_a_norm_with_a_negative_number_is_narrowed() -> None:
    norm, x = LimitedNorm(8), torch.randn(4, 8)
    x[:, 3:] = 0
    expected, shapes = norm(x), tensor_shapes(norm)
    norm.weight.data = norm.weight.data[:3]
    torch.testing.assert_close(narrowed(norm, -1, shapes)(x[:, :3]), expected[:, :3])
    assert norm.least == -1.0


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * 8), nn.Linear(8, width)

    def forward(self, x: Tensor) -> Any:
        q, k, v = (each.unflatten(-1, (-1, 4)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    """Norms before or behind each block, words, positions and a token of its own."""

    def __init__(self, norm: str = "layer norm", *, first: bool = True, tied: bool = False) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(9, WIDTH), nn.Parameter(torch.randn(1, 6, WIDTH))
        self.token, self.first = nn.Parameter(torch.randn(1, 1, WIDTH)), first
        self.blocks = nn.ModuleList()
        for _ in range(2):
            self.blocks += [Attention(WIDTH)]
            self.blocks += [nn.Sequential(nn.Linear(WIDTH, 20), nn.GELU(), nn.Linear(20, WIDTH))]
        self.norms = nn.ModuleList(NORMS[norm](WIDTH) for _ in range(5))
        self.head = nn.Linear(WIDTH, 9)
        if tied:
            self.head.weight = self.words.weight
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.5)

    def forward(self, words: Tensor) -> Any:
        x = self.words(words) + self.places
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        for block, norm in zip(self.blocks, self.norms, strict=False):
            x = x + block(norm(x)) if self.first else norm(x + block(x))
        return self.head(self.norms[-1](x)[:, 0])


WORDS = torch.arange(18).reshape(3, 6) % 9


@torch.no_grad()
def remove_stream(model: nn.Module, gone: list[int]) -> None:
    """Zero everything that belongs to channels of the stream."""
    for parameter in model.parameters():
        for dim, size in enumerate(parameter.shape):
            if size == WIDTH:
                parameter.index_fill_(dim, torch.tensor(gone), 0)


@pytest.mark.parametrize(
    ("norm", "first"),
    [("layer norm", True), ("layer norm", False), ("rms norm", True), ("own rms norm", False)],
)
def test_a_stream_is_narrowed(norm: str, first: bool) -> None:
    torch.manual_seed(0)
    model = Transformer(norm, first=first).eval()
    remove_stream(model, [1, 5, 6, 11])
    small = compact(model, WORDS)
    assert small.words.weight.shape == (9, 8)
    assert [len(block.out.weight) for block in small.blocks[::2]] == [8, 8]
    assert type(small) is Transformer
    assert small.notes == []
    torch.testing.assert_close(small(WORDS), model(WORDS), rtol=1e-4, atol=1e-5)


def test_a_channel_with_anything_left_stays() -> None:
    torch.manual_seed(0)
    model = Transformer().eval()
    remove_stream(model, [1, 5, 6])
    model.get_parameter("blocks.0.out.bias").data[5] = 1e-3  # the norms see it
    small = compact(model, WORDS)
    assert small.words.weight.shape == (9, WIDTH - 2)
    torch.testing.assert_close(small(WORDS), model(WORDS), rtol=1e-4, atol=1e-5)


def test_zeros_that_do_not_stay_zeros_are_heard() -> None:
    class Gated(nn.Module):
        def __init__(self, act: nn.Module) -> None:
            super().__init__()
            self.first, self.norm, self.second, self.act = nn.Linear(4, 8), ResponseNorm(8), nn.Linear(8, 4), act

        def forward(self, x: Tensor) -> Any:
            return self.second(self.norm(self.act(self.first(x))))

    x, widths = torch.randn(2, 3, 3, 4), []
    for act in (nn.GELU(), nn.Sigmoid()):
        model: Any = Gated(act).eval()
        with torch.no_grad():
            for each in (model.first.weight, model.first.bias, model.second.weight.T, model.norm.weight.squeeze()):
                each[:3] = 0
            model.norm.bias[..., :3] = 0
        small = compact(model, x)
        widths.append(small.first.out_features)
        torch.testing.assert_close(small(x), model(x))
    assert widths == [5, 8]


def trained(model: nn.Module, steps: int = 12, **options: Any) -> flipout.Pruner:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    options = {"sparsity": 0.6, "granularity": "channel", "target": "macs", "residual": True, **options}
    pruner = flipout.FlipOut(model, optimizer, steps=steps, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(WORDS), torch.tensor([1, 4, 7])).backward()
        optimizer.step()
    return pruner


@pytest.mark.parametrize(("first", "tied"), [(False, False), (True, True)])
def test_a_stream_is_pruned_in_training_saved_and_reloaded(tmp_path: Path, first: bool, tied: bool) -> None:
    torch.manual_seed(0)
    model = Transformer(first=first, tied=tied)
    pruner = trained(model)
    pruner.check()
    small = compact(model.eval(), WORDS)
    width = small.words.weight.shape[1]
    assert width < WIDTH
    torch.testing.assert_close(small(WORDS), model(WORDS), rtol=1e-4, atol=1e-5)
    before, after = (ChannelGraph.of(each, (WORDS,)).multiply_adds() for each in (model, small))
    assert after <= 0.4 * before

    export.save_compacted(small, tmp_path / "small.safetensors")
    build = lambda: Transformer(first=first, tied=tied)  # noqa: E731
    again = export.load_compacted(tmp_path / "small.safetensors", build).eval()
    assert torch.equal(again(WORDS), small(WORDS))
    file = io.BytesIO()
    torch.save(small, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(WORDS), small(WORDS))


def test_a_narrow_network_is_pruned_further(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Transformer().eval()
    remove_stream(model, [0, 4])
    small = compact(model, WORDS).train()
    trained(small, sparsity=0.5).remove()
    smaller = compact(small.eval(), WORDS)
    assert smaller.words.weight.shape[1] < WIDTH - 2
    torch.testing.assert_close(smaller(WORDS), small(WORDS), rtol=1e-4, atol=1e-5)
    export.save_compacted(smaller, tmp_path / "smaller.safetensors")
    again = export.load_compacted(tmp_path / "smaller.safetensors", Transformer).eval()
    assert torch.equal(again(WORDS), smaller(WORDS))


@pytest.mark.filterwarnings("ignore::flipout.problems.ChannelWarning")
def test_a_stream_stays_whole_by_default() -> None:
    torch.manual_seed(0)
    model = Transformer()
    trained(model, sparsity=0.3, residual=False).remove()
    assert compact(model, WORDS).words.weight.shape == (9, WIDTH)


@pytest.mark.filterwarnings("ignore::flipout.problems.ChannelWarning")
def test_frozen_parameters_of_a_stream_keep_it_whole() -> None:
    torch.manual_seed(0)
    model = Transformer()
    model.places.requires_grad_(False)
    before = model.places.clone()
    trained(model, sparsity=0.3).remove()
    assert torch.equal(model.places, before)
    assert compact(model, WORDS).words.weight.shape == (9, WIDTH)


def test_a_resumed_training_is_the_same() -> None:
    models: list[Any] = []
    optimizers: list[Any] = []
    pruners: list[Any] = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(Transformer())
        optimizers.append(torch.optim.AdamW(models[-1].parameters(), lr=1e-2))
        options: dict[str, Any] = {
            "sparsity": 0.5,
            "steps": 12,
            "granularity": "channel",
            "target": "macs",
            "residual": True,
        }
        pruners.append(flipout.FlipOut(models[-1], optimizers[-1], **options))

    def steps(which: int, number: int) -> None:
        for _ in range(number):
            optimizers[which].zero_grad()
            nn.functional.cross_entropy(models[which](WORDS), torch.tensor([1, 4, 7])).backward()
            optimizers[which].step()

    steps(0, 6)
    states = [copy.deepcopy(each[0].state_dict()) for each in (models, optimizers, pruners)]
    steps(0, 6)
    for each, state in zip((models, optimizers, pruners), states, strict=True):
        each[1].load_state_dict(state)
    steps(1, 6)
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other)


def test_copies_get_the_zeros_too() -> None:
    torch.manual_seed(0)
    model = Transformer()
    average = copy.deepcopy(model)
    pruner = trained(model)
    pruner.apply_to(average)
    assert compact(average, WORDS).words.weight.shape == compact(model, WORDS).words.weight.shape


def test_a_pruned_network_shrinks_elsewhere_and_trains_on() -> None:
    torch.manual_seed(0)
    model = Transformer()
    pruner = trained(model)
    expected = model.eval()(WORDS)
    pruner.shrink(WORDS)
    torch.testing.assert_close(model(WORDS), expected, rtol=1e-4, atol=1e-5)
    assert model.words.weight.shape == (9, WIDTH)  # the stream is narrowed by `compact`
    pruner.expand()


def test_a_trained_network_is_pruned_in_one_shot() -> None:
    torch.manual_seed(0)
    model = Transformer().eval()
    options: dict[str, Any] = {"granularity": "channel", "target": "macs", "residual": True, "method": "magnitude"}
    flipout.prune(model, [WORDS], sparsity=0.6, **options)
    small = compact(model, WORDS)
    assert small.words.weight.shape[1] < WIDTH
    torch.testing.assert_close(small(WORDS), model(WORDS), rtol=1e-4, atol=1e-5)


def test_a_response_norm_is_narrowed() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.second = nn.Conv2d(3, 16, 3), ResponseNorm(16, -3), nn.Conv2d(16, 3, 1)

        def forward(self, x: Tensor) -> Any:
            return self.second(self.norm(self.first(x).relu())).mean((2, 3))

    torch.manual_seed(0)
    model, x = Block(), torch.randn(4, 3, 6, 6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    flipout.FlipOut(model, optimizer, steps=8, sparsity=0.5, granularity="channel", residual=True)
    for _ in range(8):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
    small = compact(model.eval(), x)
    assert small.first.out_channels <= 8
    torch.testing.assert_close(small(x), model(x), rtol=1e-4, atol=1e-5)


def test_residual_needs_channels() -> None:
    model = Transformer()
    with pytest.raises(ValueError, match="residual"):
        flipout.FlipOut(model, torch.optim.SGD(model.parameters()), sparsity=0.5, steps=10, residual=True)


def test_damaged_norms_of_a_file_are_refused(tmp_path: Path) -> None:
    model = Transformer().eval()
    remove_stream(model, [3])
    small = compact(model, WORDS)
    for norms in ({"norms.9": -1}, {"norms.0": 1}, {"norms": "x"}):
        small.kept_norms = norms
        export.save_compacted(small, tmp_path / "small.safetensors")
        with pytest.raises(export.CompactedFileError, match="norm"):
            export.load_compacted(tmp_path / "small.safetensors", Transformer)
