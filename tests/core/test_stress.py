"""Long and hostile: many random trainings, networks of real size, two processes."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import flipout
from flipout.random_numbers import normal
from flipout.ranking import smallest
from tests.helpers import OPTIMIZERS, assert_masked, batches, cross_entropy, make, mlp, sgd

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(60))
def test_random_trainings_are_exact_at_every_step(seed: int) -> None:
    """Any method, optimizer, sparsity, scope and floor, with saves, loads and missing gradients on the way."""
    chance = random.Random(seed)
    method = chance.choice([name for name in flipout.METHODS if name not in ("dense", "keep-zeros")])
    optimizer_name = chance.choice(sorted(OPTIMIZERS))
    sparsity = round(chance.uniform(0, 0.97), 3)
    options = {
        "sparsity": sparsity,
        "steps": (steps := chance.randint(60, 120)),
        "scope": chance.choice(["global", "layer"]),
        "floor": chance.choice([0, 1, 2, 0.01]),
        "exclude": chance.choice([None, "0", "4"]),
    }
    model = mlp(seed)
    optimizer = OPTIMIZERS[optimizer_name](model)
    pruner = make(method, model, optimizer, **options)
    for x, y in batches(steps, seed=seed):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        # (Torch's fused SGD itself cannot do without a gradient in the first step that it sees.)
        if chance.random() < 0.1 and optimizer_name != "sgd-fused":
            model[2].weight.grad = None
        optimizer.step()
        assert_masked(pruner)
        if chance.random() < 0.05:
            state = pruner.state_dict()
            pruner.remove()
            pruner = make(method, model, optimizer, **options).load_state_dict(state)
            assert_masked(pruner)
    assert pruner.finished
    assert pruner.nonzero == flipout.schedules.nonzero(pruner.prunable, sparsity)


def test_selection_over_many_millions_is_a_sort() -> None:
    tensors = [normal(torch.Size([n]), seed=1, step=0, tensor=i).abs() for i, n in enumerate([5_000_000, 3, 2_000_000])]
    masks = [torch.ones_like(tensor, dtype=torch.bool) for tensor in tensors]
    flat = torch.cat(tensors)
    for count in (1, 3_500_000, 6_999_999):
        expected = torch.zeros_like(flat, dtype=torch.bool)
        expected[flat.sort(stable=True).indices[:count]] = True
        assert torch.equal(torch.cat(smallest(lambda i: tensors[i], masks, count)), expected)


def test_noise_over_many_steps_has_no_drift() -> None:
    total = torch.zeros(1000)
    for step in range(20_000):
        total += normal(total.shape, seed=0, step=step, tensor=0)
    mean = total / 20_000**0.5  # standard normal again
    assert abs(float(mean.mean())) < 5 / 1000**0.5
    assert 0.8 < float(mean.var()) < 1.25


RANK = """
import os, sys, torch
from torch import nn
sys.path.insert(0, {root!r})
import flipout
from tests.helpers import batches, cross_entropy, make, mlp, sgd
rank = int(sys.argv[1])
store = torch.distributed.FileStore({store!r}, 2)
torch.distributed.init_process_group("gloo", rank=rank, world_size=2, store=store)
model = nn.parallel.DistributedDataParallel(mlp())
optimizer = sgd(model)
pruner = make({method!r}, model, optimizer, data=list(batches(2, seed=100 + rank)))
for x, y in batches(40, seed=rank):
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    optimizer.step()
torch.save({{"masks": pruner.masks, "model": model.module.state_dict()}}, {out!r} + f"/{{rank}}.pt")
torch.distributed.barrier()
torch.distributed.destroy_process_group()
os._exit(0)  # what there is to see is saved; gloo's threads at times abort an interpreter that winds itself up
"""


@pytest.mark.parametrize("method", sorted(set(flipout.METHODS) - {"dense", "keep-zeros"}))
def test_two_data_parallel_ranks_prune_the_same_weights(method: str, tmp_path: Path) -> None:
    root = str(Path(__file__).parent.parent.parent)
    code = RANK.format(root=root, store=str(tmp_path / "store"), out=str(tmp_path), method=method)
    ranks = [subprocess.Popen([sys.executable, "-W", "ignore", "-c", code, str(rank)]) for rank in range(2)]
    assert [rank.wait(timeout=300) for rank in ranks] == [0, 0]
    one, other = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    for part in ("masks", "model"):
        assert all(torch.equal(one[part][name], other[part][name]) for name in one[part])
    assert sum(int(mask.sum()) for mask in one["masks"].values()) == 35


def test_a_network_of_twenty_million_weights() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 2048), nn.ReLU(), nn.Linear(2048, 1024))
    optimizer = sgd(model)
    pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.99, steps=6)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(4, 2048)).square().mean().backward()
        optimizer.step()
    assert pruner.nonzero == round(pruner.prunable * 0.01)
    assert_masked(pruner)
