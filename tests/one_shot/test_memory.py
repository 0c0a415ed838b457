"""What pruning needs beside the model: one block with its Hessians, and a half more, however many blocks there are."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import flipout
from flipout.export.costs import MemoryCounter
from flipout.one_shot import kept_outputs, solvers

from .networks import perceptron, same, state, vectors

WIDTH, FEATURES = 128, 512


def peak(blocks: int, **options: object) -> int:
    """The most bytes of tensors that pruning makes at one time."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, FEATURES), nn.ReLU(), nn.Linear(FEATURES, WIDTH)) for _ in range(blocks))
    )
    batches = [torch.randn(16, WIDTH) for _ in range(8)]
    there = {each.untyped_storage()._cdata for each in (*model.parameters(), *batches)}
    with MemoryCounter(there) as counter:
        flipout.prune(model, batches, sparsity=0.5, scope="layer", **options)  # type: ignore[arg-type]
    return int(counter.peak)


def test_the_peak_is_that_of_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solvers, "TRIANGLE", 64)  # as in a block that is larger than the triangles
    weights, hessians = 4 * 2 * WIDTH * FEATURES, 4 * ((WIDTH + 1) ** 2 + (FEATURES + 1) ** 2)
    histograms = 1 << 20  # those of a ranking, whose size is fixed
    assert peak(8) < 1.5 * (weights + hessians) + histograms
    assert peak(8) < 1.02 * peak(3)


def test_large_outputs_of_blocks_are_kept_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    model = perceptron((12, 16, 16, 16, 4))
    other = copy.deepcopy(model)
    flipout.prune(model, vectors(), sparsity=0.6)
    monkeypatch.setattr(kept_outputs, "IN_MEMORY", 0)
    flipout.prune(other, vectors(), sparsity=0.6)
    assert same(model, state(other))


def test_an_output_of_any_structure_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for most in (0, 1 << 20):
        monkeypatch.setattr(kept_outputs, "IN_MEMORY", most)
        kept, output = kept_outputs.KeptOutputs(2), {"x": (torch.ones(3), None), "y": [2, torch.zeros(2, 2)]}
        kept.put(1, output)
        for _ in range(2):
            found = kept.get(1)
            assert torch.equal(found["x"][0], torch.ones(3))
            assert found["y"][0] == 2
            found["x"][0].zero_()
