"""Small networks that are sharded in several ways, trained on the same data as on one device.

Everything is in float64, and every rank sees the same batches, so that FSDP2 computes the same bits as one device: it
averages equal gradients, over a power of two of ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import flipout

STEPS = 40
SUMMING = ("hoyer-square", "flipout", "flipout-paper")
"""Methods with sums over elements: norms, and limits of hidden gradients. Their last bits differ between a shard and a
group of small weights, so weights are compared to rounding. Masks are equal."""


def network(seed: int = 0) -> nn.Sequential:
    """12 * 10 + 10 * 7 + 7 * 1 = 197 weights. The rows do not divide by two and four, and the last layer has one."""
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 7), nn.ReLU(), nn.Linear(7, 1))
    return layers.double()


def whole(seed: int = 0) -> nn.Module:
    return network(seed)


def fsdp(seed: int = 0) -> nn.Module:
    model = network(seed)
    for number in (0, 2):
        fully_shard(model[number])
    fully_shard(model)
    return model


def hsdp(seed: int = 0) -> nn.Module:
    model = network(seed)
    fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards")))
    return model


def tensor_parallel(seed: int = 0) -> nn.Module:
    model = network(seed)
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return model


def both(seed: int = 0) -> nn.Module:
    """FSDP2 over what tensor parallelism has split."""
    model = network(seed)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    return model


LAYOUTS: dict[str, Callable[[int], nn.Module]] = {
    "whole": whole,
    "fsdp": fsdp,
    "hsdp": hsdp,
    "tensor-parallel": tensor_parallel,
    "both": both,
}


def optimizer_of(model: nn.Module, kind: str = "sgd") -> torch.optim.Optimizer:
    if kind == "adamw":
        return torch.optim.AdamW(model.parameters(), 0.01)
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-3)


def prune(model: nn.Module, method: str, optimizer: str = "sgd", **options: Any) -> flipout.Pruner:
    settings = {"sparsity": 0.9, "steps": STEPS, **options}
    return flipout.METHODS[method](model, optimizer_of(model, optimizer), **settings)


def train(pruner: flipout.Pruner, steps: int = STEPS, *, skip: int = 0) -> None:
    """Steps `skip` to `steps`."""
    generator = torch.Generator().manual_seed(1)
    penalty = getattr(pruner, "penalty", None)
    for number in range(steps):
        x = torch.randn(16, 12, generator=generator, dtype=torch.float64)
        if number < skip:
            continue
        loss = (pruner.model(x) - x[:, :3].sin().sum(1, keepdim=True)).square().mean()
        (loss if penalty is None else loss + penalty()).backward()
        pruner.optimizer.step()
        pruner.optimizer.zero_grad()


def gathered(tensor: Any) -> Tensor:
    """The whole tensor, on every rank."""
    if not hasattr(tensor, "full_tensor"):
        result: Tensor = tensor.detach()
        return result
    whole_tensor: Tensor = tensor.detach().full_tensor()
    return whole_tensor


def masks_of(pruner: flipout.Pruner) -> dict[str, Tensor]:
    return {weight.name: weight.view.gather(weight.mask) for weight in pruner.weights}


def weights_of(pruner: flipout.Pruner) -> dict[str, Tensor]:
    return {weight.name: gathered(weight.parameter) for weight in pruner.weights}


def compare(pruner: flipout.Pruner, expected: flipout.Pruner, *, bits: bool) -> None:
    """The same masks, counts and events; the same bits in the weights if the arithmetic is the same."""
    masks, weights = masks_of(pruner), weights_of(pruner)
    for name, mask in masks_of(expected).items():
        assert torch.equal(masks[name], mask), f"the masks of {name} differ"
        other = expected.model.get_parameter(name).detach()
        assert torch.equal(weights[name], other) if bits else torch.allclose(weights[name], other, atol=1e-9), name
        assert not weights[name][~mask].any(), f"{name} has pruned weights that are not zero"
    assert pruner.events == expected.events
    assert (pruner.nonzero, pruner.prunable) == (expected.nonzero, expected.prunable)
    assert str(pruner.summary()) == str(expected.summary())
    assert not pruner.lost_zeros()
