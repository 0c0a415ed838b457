"""The result of a finished run: the content of `result.json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import flipout
from flipout.export.multiply_adds import count_multiply_adds
from flipout.graph.model_copies import evaluation_copy

if TYPE_CHECKING:
    from .training import Run


def result_of(run: Run) -> dict[str, Any]:
    """Return the result of a finished run. The accuracy is that of the last epoch."""
    settings, pruner, last = run.settings, run.pruner, run.metrics[-1]
    summary = pruner.summary(torch.zeros(1, *run.data.shape, device=run.device))
    return {
        "method": settings.method,
        "data": settings.data,
        "model": settings.model,
        "seed": settings.seed,
        "epochs": settings.total_epochs,
        "sparsity": pruner.sparsity,
        "nonzero": pruner.nonzero,
        "prunable": pruner.prunable,
        "effective": summary.effective,
        "effective_sparsity": 1 - summary.effective / summary.weights if summary.effective is not None else None,
        "multiply_adds": multiply_adds(run),
        "test_accuracy": last["test_accuracy"],
        "validation_accuracy": last["validation_accuracy"],
        "accuracy_of": "last epoch",
        "loss": last["loss"],
        "dead_layers": [layer.name for layer in summary.layers if layer.weights and not layer.kept],
        "layers": {layer.name: {"weights": layer.weights, "kept": layer.kept} for layer in summary.layers},
        "prunings": [{"step": e.step, "nonzero": e.nonzero, "kept": e.kept} for e in pruner.events],
        "flips": flip_histogram(pruner),
        "aim": None if run.aim is None else shots(run.aim),
        "shrinks": run.shrinker.record(),
        "computed": last["computed"],
        "seconds": round(run.seconds, 3),
    }


def multiply_adds(run: Run) -> dict[str, int]:
    """Count the multiply-adds of one image: all of them, and those that do not use a zero weight."""
    image = torch.zeros(1, *run.data.shape, device=run.device)
    counted = count_multiply_adds(evaluation_copy(run.model), (image,))
    return {"dense": counted.dense, "nonzero": counted.nonzero}


def flip_histogram(pruner: flipout.Pruner) -> dict[str, dict[str, list[int]]] | None:
    """Count for each layer how many weights, kept and pruned, flipped 0, 1 to 2, 3 to 6, 7 to 14, ... times."""
    if (flips := pruner.statistics.get("flips")) is None:
        return None
    histogram = {}
    for name, mask in pruner.masks.items():
        doublings = (flips[name] + 1).double().log2().int()
        histogram[name] = {
            kind: torch.bincount(doublings[which].flatten()).tolist()
            for kind, which in (("kept", mask), ("pruned", ~mask))
        }
    return histogram


def shots(aim: flipout.AimTest) -> dict[str, int]:
    """Return the total over-shoots and under-shoots of zero, counted by the aim test."""
    counts = {"over_shoots": aim.over_shoots, "under_shoots": aim.under_shoots}
    return {kind: sum(int(count.sum()) for count in of.values()) for kind, of in counts.items()}
