"""The lab's training loop against a bare one: LeNet-300-100 on data of MNIST's size in memory, one thread."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

import torch
from torch import Tensor, nn

from flipout_lab import build, make_settings
from flipout_lab.runs.pruning import make_optimizer
from flipout_lab.runs.run_views import View
from flipout_lab.runs.training import Run

from .timing import Times, interleaved

BATCH, IMAGES, REPETITIONS = 128, 128 * 100, 9


def images() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random images in the form of MNIST: 100 batches to train on."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (IMAGES, 1, 28, 28), generator=generator, dtype=torch.uint8)
    labels = torch.randint(10, (IMAGES,), generator=generator)
    return pixels, labels, pixels[:10], labels[:10]


def measure() -> Times:
    """An epoch of `--method dense` over an epoch of a hand-written loop with the same optimizer."""
    threads = torch.get_num_threads()
    settings = make_settings(
        data="benchmarks.loop:images", model="lenet-300-100", method="dense", batch_size=BATCH, epochs=1000, threads=1
    )
    with tempfile.TemporaryDirectory() as folder:
        run = Run(settings, Path(folder), View(), ())
        never = threading.Event()
        bare = build("lenet-300-100", (1, 28, 28))
        optimizer = make_optimizer(settings, bare)
        pixels, labels = run.train_set.images, run.train_set.labels

        def by_hand() -> None:
            for index in torch.randperm(IMAGES).split(BATCH):
                loss = nn.functional.cross_entropy(bare(pixels[index]), labels[index])
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

        taken = interleaved({"lab": lambda: run._steps(never), "bare": by_hand}, REPETITIONS)
    torch.set_num_threads(threads)
    return taken
