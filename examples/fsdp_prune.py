"""Prune a network that is sharded with FSDP2, save it with torch.distributed.checkpoint, and resume.

Run it on two processes: torchrun --nproc-per-node=2 examples/fsdp_prune.py. (Without torchrun it runs on one.)
"""

import os
import tempfile
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import flipout

STEPS, HALF = 200, 100

warnings.filterwarnings("ignore", category=flipout.UnfinishedWarning)  # the first training stops half-way on purpose
for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29555"}.items():
    os.environ.setdefault(name, value)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)


def build(seed: int) -> tuple[nn.Module, torch.optim.Optimizer, flipout.Pruner]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    for module in model:
        if isinstance(module, nn.Linear):
            fully_shard(module)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)  # of the sharded weights
    return model, optimizer, flipout.FlipOut(model, optimizer, sparsity=0.95, steps=STEPS)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    for step in range(first, last):
        batch = torch.arange(step * 64 + rank, (step + 1) * 64, ranks) % len(x)  # every rank has its own examples
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
        optimizer.zero_grad()


model, optimizer, pruner = build(seed=0)
train(model, optimizer, 0, HALF)
folder = [tempfile.mkdtemp() if rank == 0 else ""]
dist.broadcast_object_list(folder)
weights, moments = get_state_dict(model, optimizer)
dcp.save({"model": weights, "optimizer": moments, "pruner": pruner}, checkpoint_id=folder[0])  # type: ignore[attr-defined]
train(model, optimizer, HALF, STEPS)
expected = [parameter.full_tensor() for parameter in model.parameters()]  # type: ignore[attr-defined]
pruner.remove()

model, optimizer, pruner = build(seed=1)  # as in a new program, on any number of ranks
weights, moments = get_state_dict(model, optimizer)
dcp.load({"model": weights, "optimizer": moments, "pruner": pruner}, checkpoint_id=folder[0])  # type: ignore[attr-defined]
set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
train(model, optimizer, HALF, STEPS)

resumed = [parameter.full_tensor() for parameter in model.parameters()]  # type: ignore[attr-defined]
if rank == 0:
    print(pruner.summary())  # the same on every rank
    print("identical to the last bit:", all(map(torch.equal, expected, resumed)))
dist.destroy_process_group()
