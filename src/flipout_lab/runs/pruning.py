"""What a run knows of its pruner: how it is made from the settings, how it acts on training, and what is measured."""

from __future__ import annotations

import inspect
import json
import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

import flipout
from flipout.channels.copies import evaluation_copy
from flipout.export.costs import count_multiply_adds
from flipout.schedules import Schedule
from flipout.statistics import Flips
from flipout.units import as_granularity

from ..data import DATA
from ..data.batches import validation_size
from ..errors import LabError, find
from .method_options import SECOND_CHANCES, SecondChances
from .settings import Settings, validated

COMPILE = {"auto": "auto", "yes": True, "no": False}
WITHOUT_EFFECT = {"seed", "threads", "device", "amp", "aim", "init", "width", "floor"}
"""Settings that do not decide whether the options of a method are valid, and one that needs the real network."""


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
            return flipout.Pruner(model, optimizer, **_with_criterion(criterion, settings, steps, arguments))
        if "steps" in record.parameters:
            arguments["steps"] = steps
        pruner = record(model, optimizer, **arguments)
    except (ValueError, FloatingPointError) as error:  # the library names the fix
        raise LabError(str(error)) from error
    if record.needs.penalty and not callable(getattr(pruner, "penalty", None)):
        raise LabError(
            f"{settings.method} declares LoopNeeds(penalty=True) but has no method penalty(); add one that returns "
            "what is added to the loss"
        )
    return pruner


def _arguments(settings: Settings, steps: int, steps_per_epoch: int) -> dict[str, Any]:
    """The arguments of the constructor: what the lab decides, and the options that are not at their default."""
    record, given = settings.record, settings.given_options
    sparse_kernels = settings.sparse_kernels and torch.device(settings.device).type == "cpu"
    decided = {"seed": settings.seed, "compile": COMPILE[settings.compile], "sparse_kernels": sparse_kernels}
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
    if any(key.startswith(SECOND_CHANCES) for key in given):
        arguments[SECOND_CHANCES] = _second_chances(settings)
    if record.needs.further_epochs:
        arguments["fine_tune"] = 1 - settings.epochs / settings.total_epochs
    for key, option in settings.method_options.items():
        if option.argument and key in given:
            value = given[key]
            if option.in_epochs and value is not None:
                value = int(value.split()[0]) if isinstance(value, str) else round(value * steps_per_epoch)
            arguments[option.argument] = value
    return arguments


def _with_criterion(name: str, settings: Settings, steps: int, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a pruner with the method's schedule, noise, horizon and second chances, and the user's score."""
    arguments = {"noise": settings.option("noise"), SECOND_CHANCES: _second_chances(settings)} | arguments
    criterion = find(name)
    if (p := arguments.pop("p", None)) is not None:
        if "p" not in inspect.signature(criterion).parameters:
            raise LabError(f"the criterion {name} takes no p; leave --p out, or add an argument p to the function")
        criterion = partial(criterion, p=p)
    arguments.pop("horizon", None)
    if (horizon := settings.option("horizon")) is not None:
        arguments["statistics"] = {"flips": partial(Flips, horizon=horizon)}
    arguments.setdefault("schedule", flipout.Geometric(arguments["sparsity"], steps))
    del arguments["sparsity"]  # the schedule has it
    return {"criterion": criterion, **arguments}


def _second_chances(settings: Settings) -> SecondChances | None:
    if not settings.option(SECOND_CHANCES):
        return None
    return SecondChances(**{f.name: settings.option(f"{SECOND_CHANCES}_{f.name}") for f in fields(SecondChances)})


def schedule(settings: Settings, steps: int, steps_per_epoch: int) -> Schedule:
    """Return when a method prunes."""
    assert settings.sparsity is not None
    kind, window = settings.option("schedule"), (settings.option("start"), settings.option("end"))
    if kind == "paper":
        return paper_schedule(settings.sparsity, steps, steps_per_epoch)
    if kind == "one-shot":
        return flipout.OneShot(settings.sparsity, steps, settings.option("end"))
    usual = getattr(settings.record.cls, "default_schedule", flipout.Geometric)
    spread = flipout.Cubic if kind == "cubic" else usual
    return spread(settings.sparsity, steps, settings.option("prunings"), window)


def paper_schedule(sparsity: float, steps: int, steps_per_epoch: int) -> flipout.Geometric:
    """The schedule of the paper: at the ends of epochs, or between steps where there are too few epochs for that."""
    try:
        return flipout.Geometric.paper(sparsity, steps, steps_per_epoch=steps_per_epoch)
    except ValueError:
        return flipout.Geometric.paper(sparsity, steps)


def make_optimizer(settings: Settings, model: nn.Module) -> torch.optim.Optimizer:
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), rate, momentum=settings.momentum, weight_decay=decay)
    kind = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
    return kind(model.parameters(), rate, betas=(settings.momentum, 0.999), weight_decay=decay)


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


def shrinking(settings: Settings, pruner: flipout.Pruner) -> Callable[[Tensor], None]:
    """Return a function of the images of a step that shrinks the network after it, where that saves time.

    It does nothing in a run with the aim test. A method that adds a penalty to the loss is shrunk after its last
    pruning: the penalty does not reach weights that are removed.
    """
    if not settings.shrink or settings.aim:
        return lambda images: None
    has_penalty = settings.record.needs.penalty

    def after_step(images: Tensor) -> None:
        if (pruner.finished or not has_penalty) and pruner.worth_shrinking:
            pruner.shrink(images)

    return after_step


def measure_epoch(pruner: flipout.Pruner) -> dict[str, Any]:
    """Return what the line of an epoch in `metrics.jsonl` says of the pruner."""
    flips = pruner.statistics.get("flips")
    return {
        "sparsity": pruner.sparsity,
        "nonzero": pruner.nonzero,
        "flips": None if flips is None else sum(int(count.sum()) for count in flips.values()),
    }


def measure_result(pruner: flipout.Pruner, model: nn.Module, image: Tensor) -> dict[str, Any]:
    """Return what `result.json` says of the pruner and its network, given an example of an image."""
    summary = pruner.summary(image)
    counted = count_multiply_adds(evaluation_copy(model), (image,))
    return {
        "sparsity": pruner.sparsity,
        "nonzero": pruner.nonzero,
        "prunable": pruner.prunable,
        "effective": summary.effective,
        "effective_sparsity": 1 - summary.effective / summary.weights if summary.effective is not None else None,
        "multiply_adds": {"dense": counted.dense, "nonzero": counted.nonzero},
        "dead_layers": [layer.name for layer in summary.layers if layer.weights and not layer.kept],
        "layers": {layer.name: {"weights": layer.weights, "kept": layer.kept} for layer in summary.layers},
        "prunings": [{"step": e.step, "nonzero": e.nonzero, "kept": e.kept} for e in pruner.events],
        "flips": _flip_histogram(pruner),
        "shrinks": [shrink._asdict() for shrink in pruner.shrinks],
        "sparse_layers": pruner.sparse_kernels.layers,
    }


def _flip_histogram(pruner: flipout.Pruner) -> dict[str, dict[str, list[int]]] | None:
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


def check_method_options(settings: Settings) -> None:
    """Attach a method of flipout to a tiny network with the steps of the run. Invalid options are an error.

    A method of the user is not tried: its constructor may need the real network. Options that depend on the size of
    the network (`floor`, and a sparsity that leaves hardly a weight) are checked when the run starts.
    """
    if ":" in settings.method or not settings.record.cls.__module__.startswith("flipout."):
        return
    values = {key: value for key, value in settings.as_dict().items() if key not in WITHOUT_EFFECT}
    if settings.sparsity is not None and as_granularity(settings.option("granularity") or "weight").kind != "pattern":
        values["sparsity"] = min(settings.sparsity, 0.5)
    _try_options(json.dumps({**values, "compile": "no", "sparse_kernels": False}))


@lru_cache(maxsize=4096)  # the runs of a grid differ in the seed
def _try_options(content: str) -> None:
    settings = validated(json.loads(content), stored=True)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run itself warns
        model = nn.Linear(64, 64)
        batch = torch.zeros(2, 64), torch.zeros(2, dtype=torch.long)
        # The size of other data is not known before it is read.
        steps = steps_per_epoch(settings, DATA[settings.data].train) if settings.data in DATA else 1_000_000
        attach(settings, model, make_optimizer(settings, model), steps, lambda _: [batch]).remove()


def steps_per_epoch(settings: Settings, images: int) -> int:
    if settings.validate_:
        images -= validation_size(settings.data, images)
    return math.ceil(images / settings.batch_size)
