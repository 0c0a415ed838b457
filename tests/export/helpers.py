"""Networks to export, and what holds for every compacted one."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from flipout.export import compact


def numbers(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@torch.no_grad()
def assert_same(model: nn.Module, small: nn.Module, *inputs: Tensor) -> None:
    expected, actual = model(*inputs), small(*inputs)
    scale = float(expected.abs().max())
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9 * max(scale, 1e-3))


def notes_of(small: nn.Module) -> list[str]:
    notes = small.notes
    assert isinstance(notes, list)
    return notes


def check(model: nn.Module, shape: tuple[int, ...], other_size: tuple[int, ...] | None = None) -> nn.Module:
    """Check everything that holds for any network, in float64; return the compacted network."""
    model = model.double().train()
    before = copy.deepcopy(model.state_dict())
    small = compact(model, torch.randn(2, *shape, dtype=torch.float64))
    assert model.training
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in before.items())
    assert not any(note.startswith("nothing was removed") for note in notes_of(small))
    model.eval()
    for size in (shape, other_size or shape):
        assert_same(model, small, torch.randn(3, *size, dtype=torch.float64))
    assert numbers(compact(small, torch.randn(1, *shape, dtype=torch.float64))) == numbers(small)
    assert type(small) is type(model)
    return small


def outputs(model: nn.Module) -> list[int]:
    """Return the number of outputs of each layer, in the order of the original."""
    return [layer.outputs[1] for layer in model.compaction.layers]  # type: ignore[union-attr]


def zero(layer: nn.Module, rows: list[int], columns: list[int] | None = None) -> None:
    weight = layer.weight
    assert isinstance(weight, nn.Parameter)
    with torch.no_grad():
        weight[rows] = 0
        if columns:
            weight[:, columns] = 0


@torch.no_grad()
def prune(model: nn.Module, sparsity: float, seed: int = 0) -> nn.Module:
    """Set random weights to zero, and the statistics of norms to random values."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.masked_fill_(torch.rand(parameter.shape, generator=generator) < sparsity, 0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(generator=generator)  # type: ignore[union-attr]
            module.running_var.uniform_(0.5, 2, generator=generator)  # type: ignore[union-attr]
            module.bias.normal_(generator=generator)
    return model.eval()
