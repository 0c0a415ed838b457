"""From the settings of a run to its pruner and its learning rate."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import flipout
from flipout.schedules import Schedule
from flipout.statistics import Flips

from ..errors import LabError
from ..plugins import find_function
from .settings import Settings

COMPILE = {"auto": "auto", "yes": True, "no": False}


def attach(
    settings: Settings,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps_per_epoch: int,
    batches: Callable[[int], Iterable[tuple[Tensor, Tensor]]],
) -> flipout.Pruner:
    """Attach the pruner of a run. `batches(n)` returns n batches, for a method that needs some."""
    record, steps = settings.record, settings.total_epochs * steps_per_epoch
    try:
        arguments = _arguments(settings, steps, steps_per_epoch)
        if record.needs.batches:
            arguments["batches"] = list(batches(settings.option("batches")))
            arguments["loss_fn"] = nn.functional.cross_entropy
        if (criterion := settings.option("criterion")) is not None:
            return _with_criterion(criterion, settings, model, optimizer, steps, arguments)
        if "steps" in record.parameters:
            arguments["steps"] = steps
        pruner = record(model, optimizer, **arguments)
    except (ValueError, FloatingPointError) as error:  # the library names the fix
        raise LabError(str(error)) from error
    if record.needs.penalty and not callable(getattr(pruner, "penalty", None)):
        raise LabError(f"{settings.method} declares LoopNeeds(penalty=True) but has no method penalty()")
    return pruner


def _with_criterion(
    name: str,
    settings: Settings,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int,
    arguments: dict[str, Any],
) -> flipout.Pruner:
    """The method's schedule, noise, horizon and revival with a user's criterion, which takes `p` where it was given."""
    arguments = {"noise": settings.option("noise"), "revival": revival(settings)} | arguments
    criterion = find_function(name)
    if "p" in arguments:
        if "p" not in inspect.signature(criterion).parameters:
            raise LabError(f"the criterion {name} takes no p; leave --p out, or add an argument p to the function")
        criterion = partial(criterion, p=arguments.pop("p"))
    arguments.pop("horizon", None)
    if (horizon := settings.option("horizon")) is not None:
        arguments["statistics"] = {"flips": partial(Flips, horizon=horizon)}
    arguments.setdefault("schedule", flipout.Geometric(arguments["sparsity"], steps))
    del arguments["sparsity"]  # the schedule has it
    return flipout.Pruner(model, optimizer, criterion=criterion, **arguments)


def _arguments(settings: Settings, steps: int, steps_per_epoch: int) -> dict[str, Any]:
    """The arguments of the constructor: what the lab decides, and the options that are not at their default."""
    record, given = settings.record, settings.given_options
    decided = {"seed": settings.seed, "compile": COMPILE[settings.compile]}
    arguments: dict[str, Any] = {key: value for key, value in decided.items() if key in record.common}
    if settings.sparsity is not None and "sparsity" in record.parameters:
        arguments["sparsity"] = settings.sparsity
    if settings.sparsity is not None and given.keys() & {"schedule", "prunings", "start", "end"}:
        arguments["schedule"] = schedule(settings, steps, steps_per_epoch)
    if given.keys() & {"noise", "relative_to"}:
        scale = settings.option("noise")
        arguments["noise"] = (
            None if scale is None else flipout.GradientNoise(scale, settings.option("relative_to"), settings.seed)
        )
    if any(key.startswith("revival") for key in given):
        arguments["revival"] = revival(settings)
    if record.needs.further_epochs:
        arguments["fine_tune"] = 1 - settings.epochs / settings.total_epochs
    for key, option in settings.method_options.items():
        if option.argument and key in given:
            value = given[key]
            in_steps = option.in_epochs and value is not None
            arguments[option.argument] = round(value * steps_per_epoch) if in_steps else value
    return arguments


def revival(settings: Settings) -> flipout.Revival | None:
    """Return whether and how pruned weights may come back."""
    if not settings.option("revival"):
        return None
    names = [field.name for field in fields(flipout.Revival)]
    return flipout.Revival(**{name: settings.option(f"revival_{name}") for name in names})


def schedule(settings: Settings, steps: int, steps_per_epoch: int) -> Schedule:
    """Return when a method prunes.

    The paper prunes at the ends of epochs. Where there are too few epochs for that, its schedule prunes between steps.
    """
    assert settings.sparsity is not None
    kind, window = settings.option("schedule"), (settings.option("start"), settings.option("end"))
    if kind == "paper":
        try:
            return flipout.Geometric.paper(settings.sparsity, steps, steps_per_epoch=steps_per_epoch)
        except ValueError:
            return flipout.Geometric.paper(settings.sparsity, steps)
    if kind == "one-shot":
        return flipout.OneShot(settings.sparsity, steps, settings.option("end"))
    usual = getattr(settings.record.cls, "default_schedule", flipout.Geometric)
    spread = flipout.Cubic if kind == "cubic" else usual
    return spread(settings.sparsity, steps, settings.option("prunings"), window)


def learning_rate(settings: Settings, pruner: flipout.Pruner, step: int, steps_per_epoch: int) -> float:
    """Return the learning rate of a step: it decays at each milestone, and milestones scale with the epochs.

    Epochs after the pruning (`--fine-tune`) keep the last rate. Where a method asks for it, the schedule starts over
    after each pruning.
    """
    length = settings.epochs * steps_per_epoch
    if settings.record.needs.restarts_learning_rate:
        starts = [0, *(pruning.step for pruning in pruner.plan()), settings.total_epochs * steps_per_epoch]
        at = len(pruner.events)
        step, length = step - starts[at], starts[at + 1] - starts[at]
    passed = sum(step >= milestone * length / settings.milestones_of for milestone in settings.milestones)
    return settings.learning_rate * settings.decay**passed
