"""A whole training step with FlipOut over a plain one, at batches of 128."""

from __future__ import annotations

import torch
from torch import nn

import flipout
from flipout.lab import build

from .step import NETWORKS
from .timing import Times, Work, interleaved

BATCH = 128


def step(network: str, pruned: bool) -> Work:
    """A step on random images: forward, backward, SGD."""
    model = build(network, NETWORKS[network])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, fused=True)
    if pruned:
        flipout.PaperFlipOut(model, optimizer, sparsity=0.9, steps=10**9, compile=True)
    images, labels = torch.randn(BATCH, *NETWORKS[network]), torch.randint(10, (BATCH,))

    def work() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return work


def measure(network: str, repetitions: int) -> Times:
    return interleaved({"flipout": step(network, True), "plain": step(network, False)}, repetitions)
