"""A schedule that is not finished: it is said in the summary, and when the pruner goes."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings

import pytest

import flipout
from tests.helpers import mlp, sgd, train


def test_unfinished_in_the_summary_and_at_remove() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.9, steps=160)  # counted in batches, of four a step
    train(model, optimizer, 40)
    text = str(pruner.summary())
    assert all(number in text for number in ("40 optimizer steps", "step 80 of 160"))
    assert "batches / accumulation" in text
    with pytest.warns(flipout.UnfinishedWarning, match="gradient accumulation"):
        pruner.remove()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pruner.remove()


def test_unfinished_when_it_is_dropped() -> None:
    def forgotten(steps: int) -> None:
        model = mlp()
        optimizer = sgd(model)
        flipout.PaperFlipOut(model, optimizer, sparsity=0.9, steps=40)
        train(model, optimizer, steps)

    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        forgotten(10)
        gc.collect()
    assert [w.category for w in caught] == [flipout.UnfinishedWarning]
    assert "10 optimizer steps were taken" in str(caught[0].message)
    assert caught[0].filename == __file__  # where the pruner was created
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forgotten(20)  # the last pruning is done
        gc.collect()


def test_unfinished_when_the_program_ends() -> None:
    code = (
        "import torch, flipout\n"
        "model = torch.nn.Linear(9, 9)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.5, steps=10)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "UnfinishedWarning" in done.stderr
    failed = subprocess.run([sys.executable, "-c", code + "raise KeyError('data')"], capture_output=True, text=True)
    assert "KeyError" in failed.stderr
    assert "UnfinishedWarning" not in failed.stderr
