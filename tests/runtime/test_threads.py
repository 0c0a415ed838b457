"""Threads: pruners attached, trained and removed at the same time, and files saved to one path."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import flipout
from flipout.runtime import attachments
from flipout.weights import Weight
from tests.helpers import mlp, sgd, train

THREADS = 8


@pytest.fixture
def eager_switches() -> Iterator[None]:
    """Switch threads as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(work: Callable[[int], object]) -> list[object]:
    """Run a function in eight threads that start together; an error in one is raised here."""
    start = threading.Barrier(THREADS)

    def run(number: int) -> object:
        start.wait()
        return work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(run, range(THREADS)))


@pytest.mark.usefixtures("eager_switches")
def test_attaching_and_removing_in_eight_threads() -> None:
    models = [mlp(seed) for seed in range(THREADS)]

    def work(number: int) -> None:
        for _ in range(40):
            pruner = flipout.GlobalMagnitude(models[number], sgd(models[number]), sparsity=0.5, steps=10)
            attachments.find(torch.zeros(1))
            pruner.remove()

    at_once(work)


class Attached:
    """Stands for a pruner. When the weights of the first of them are read, another thread attaches one more."""

    more: ClassVar[list[Attached]] = []

    @property
    def weights(self) -> list[Weight]:
        if self.more:
            thread = threading.Thread(target=attachments.add, args=(self.more.pop(),))
            thread.start()
            thread.join()
        return []


def test_another_thread_attaches_while_pruners_are_compared() -> None:
    """Before, this was "Set changed size during iteration"."""
    pruners: list[Any] = [Attached() for _ in range(4)]
    for pruner in pruners[:3]:
        attachments.add(pruner)
    Attached.more.append(pruners[3])
    attachments.refuse_second([])
    assert all(attachments.discard(pruner) for pruner in pruners)


@pytest.mark.usefixtures("eager_switches")
def test_one_of_eight_pruners_gets_the_weights() -> None:
    model = mlp()
    optimizer = sgd(model)

    def work(number: int) -> flipout.Pruner | ValueError:
        try:
            return flipout.GlobalMagnitude(model, optimizer, sparsity=0.5, steps=10)
        except ValueError as error:
            return error

    results = at_once(work)
    attached = [pruner for pruner in results if isinstance(pruner, flipout.Pruner)]
    assert len(attached) == 1
    assert sum("another pruner is attached" in str(result) for result in results) == THREADS - 1
    train(model, optimizer, 10)
    assert attached[0].nonzero == 176


@pytest.mark.usefixtures("eager_switches")
def test_eight_threads_save_to_one_path(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    models = [mlp(seed) for seed in range(THREADS)]

    def work(number: int) -> None:
        for _ in range(5):
            flipout.export.save(models[number], path)

    at_once(work)
    stored = flipout.export.load(path)["0.weight"]
    assert any(torch.equal(stored, model.get_parameter("0.weight")) for model in models)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
