"""From the settings of a run to its pruner."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import flipout
from flipout.schedules import Schedule

from ..errors import LabError
from ..plugins import find_function
from .settings import Settings

ABOUT = {
    "flipout": "weights that flip their sign, with gradient noise",
    "magnitude": "the smallest weights",
    "random": "any weights: the control",
    "snip": "weights that the loss does not feel at the start; before step 1",
    "hoyer-square": "a penalty on the loss, one pruning, fine-tuning",
    "magnitude-uncertainty": "small weights that move a lot (M&U)",
    "deep-r": "a constant number of connections that rewire",
    "lottery": "the smallest, then rewind and train again",
    "dense": "nothing: the reference",
    "keep-zeros": "nothing, but keeps the zeros of --init",
}

COMPILE = {"auto": "auto", "yes": True, "no": False}


def attach(
    settings: Settings,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps_per_epoch: int,
    batches: Callable[[int], Iterable[tuple[Tensor, Tensor]]],
) -> flipout.Pruner:
    """The pruner of a run. `batches(n)` gives SNIP its batches."""
    steps = settings.total_epochs * steps_per_epoch
    try:
        options = _options(settings, steps, steps_per_epoch)
        if settings.method == "snip":
            options |= {"batches": list(batches(settings.snip_batches or 10)), "loss_fn": nn.functional.cross_entropy}
        if settings.criterion is not None:
            return _own_criterion(settings.criterion, model, optimizer, steps, options)
        return flipout.METHODS[settings.method](model, optimizer, steps=steps, **options)
    except (ValueError, FloatingPointError) as error:  # the library's own words for what cannot be
        raise LabError(str(error)) from error


def _own_criterion(
    name: str, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, options: dict[str, Any]
) -> flipout.Pruner:
    """FlipOut's schedule and noise, and a score of one's own; it gets `p` where that was given."""
    options = {"noise": 1.0} | options
    criterion = find_function(name)
    if "p" in options:
        if "p" not in inspect.signature(criterion).parameters:
            raise LabError(f"the criterion {name} takes no p; leave --p out, or let the function take it")
        criterion = partial(criterion, p=options.pop("p"))
    options.setdefault("schedule", flipout.Geometric(options["sparsity"], steps))
    del options["sparsity"]  # the schedule has it
    return flipout.Pruner(model, optimizer, criterion=criterion, **options)


def _options(settings: Settings, steps: int, steps_per_epoch: int) -> dict[str, Any]:
    options: dict[str, Any] = {"seed": settings.seed, "compile": COMPILE[settings.compile]}
    if settings.sparsity is not None:
        options["sparsity"] = settings.sparsity
    if settings.schedule is not None and settings.sparsity is not None:
        options["schedule"] = schedule(settings, steps, steps_per_epoch)
    for name in ("scope", "floor", "p", "threshold", "horizon", "rounds", "l1", "temperature", "lambda_"):
        if (value := getattr(settings, name)) is not None:
            options[name] = value
    if settings.noise is not None or settings.relative_to is not None:
        scale = settings.noise if settings.noise is not None else 1.0
        options["noise"] = flipout.GradientNoise(scale, settings.relative_to or "gradient", settings.seed)
    if settings.method == "hoyer-square":
        options["fine_tune"] = 1 - settings.epochs / settings.total_epochs
    if settings.method == "lottery" and settings.rewind_to is not None:
        options["rewind_to"] = None if settings.rewind_to < 0 else round(settings.rewind_to * steps_per_epoch)
    return options


def schedule(settings: Settings, steps: int, steps_per_epoch: int) -> Schedule:
    """When a method prunes. The paper's falls on ends of epochs, or on steps where the epochs are too few for that."""
    assert settings.sparsity is not None
    start, end = settings.start, settings.end
    window = (0.05 if start is None else start, 0.5 if end is None else end)
    if settings.schedule == "paper":
        if settings.prunings or start is not None or end is not None:
            raise LabError("the paper's schedule has no --prunings, --start and --end; use --schedule default")
        try:
            return flipout.Geometric.paper(settings.sparsity, steps, steps_per_epoch=steps_per_epoch)
        except ValueError:
            return flipout.Geometric.paper(settings.sparsity, steps)
    if settings.schedule == "one-shot":
        return flipout.OneShot(settings.sparsity, steps, 0.5 if end is None else end)
    kind = flipout.Cubic if settings.schedule == "cubic" else flipout.Geometric
    return kind(settings.sparsity, steps, settings.prunings, window)


def learning_rate(settings: Settings, pruner: flipout.Pruner, step: int, steps_per_epoch: int) -> float:
    """The rate of a step: decayed at each milestone, which scales with the epochs.

    Hoyer-Square's fine-tuning stays at the last rate. Lottery tickets start over after each pruning.
    """
    length = settings.epochs * steps_per_epoch
    if isinstance(pruner, flipout.Lottery):
        moments = [0, *(pruning.step for pruning in pruner.plan()), length]
        at = len(pruner.events)
        step, length = step - moments[at], moments[at + 1] - moments[at]
    passed = sum(step >= milestone * length / settings.milestones_of for milestone in settings.milestones)
    return settings.learning_rate * settings.decay**passed
