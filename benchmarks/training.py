"""A whole training step with FlipOut, of the paper and with second chances, over a plain one, at batches of 128."""

from __future__ import annotations

import torch
from torch import nn

import flipout
from flipout_lab import build

from .step import NETWORKS, prune_for_the_first_time
from .timing import Times, Work, interleaved

BATCH = 128


def step(network: str, method: type[flipout.FlipOut] | None = None) -> Work:
    """A step on random images: forward, backward, SGD."""
    model = build(network, NETWORKS[network])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, fused=True)
    if method is not None:
        pruner = method(model, optimizer, sparsity=0.9, steps=10**9)
        if not pruner.permanent:
            prune_for_the_first_time(pruner)
    images, labels = torch.randn(BATCH, *NETWORKS[network]), torch.randint(10, (BATCH,))

    def work() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return work


def measure(network: str, repetitions: int) -> Times:
    works = {
        "plain": step(network),
        "flipout": step(network, flipout.PaperFlipOut),
        "second_chances": step(network, flipout.FlipOut),
    }
    return interleaved(works, repetitions)
