"""What the callbacks share: a pruner from the options of a user, and its life under a trainer.

It is attached when training starts, saved with checkpoints, restored, and detached.
"""

from __future__ import annotations

import contextlib
import difflib
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .. import METHODS, Method, Pruner, Schedule, UnfinishedWarning
from ..problems import ChangedLengthWarning


def missing_package(package: str) -> ImportError:
    """The error for a framework that is not installed. It names the extra to install."""
    needed = f"flipout.integrations.{package} needs the package {package}, which is not installed"
    return ImportError(f"{needed}: pip install 'flipout[{package}]'", name=package)


class PrunerRecipe:
    """A method and its options, checked before training starts. `build` makes the pruner."""

    def __init__(self, method: str | type[Pruner] | Method, steps: int | None, options: dict[str, Any]) -> None:
        if steps is not None and steps < 1:
            raise ValueError(f"steps is {steps}; give the number of optimizer steps of the whole training")
        self.record, self.steps, self.options = _record_of(method), steps, options
        if self.record.cls is not Pruner:
            self._check_options()

    @property
    def needs_steps(self) -> bool:
        """Whether the length of training must be known. A schedule that is given complete has its own."""
        schedule = self.options.get("schedule")
        return "steps" in self.record.parameters or (schedule is not None and not isinstance(schedule, Schedule))

    def build(self, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, **further: Any) -> Pruner:
        """Attach a pruner for a training of `steps` optimizer steps."""
        arguments = self.options | further
        if "steps" in self.record.parameters:
            arguments["steps"] = steps
        elif callable(schedule := arguments.get("schedule")):
            arguments["schedule"] = schedule(steps)
        return self.record(model, optimizer, **arguments)

    def refuse_scaler(self, scaler: Any) -> None:
        """Refuse a penalty next to a gradient scaler: whether gradients are still scaled depends on the optimizer."""
        if self.record.needs.penalty and scaler is not None:
            raise ValueError(
                f"{self.record.name} adds a penalty to the loss, which this callback does not do under a gradient "
                "scaler: train in bfloat16 or float32, or write a loop of your own that adds pruner.penalty()"
            )

    def _check_options(self) -> None:
        """Refuse what the constructor would refuse, where the user sees it: not after the data is loaded."""
        known = {*self.record.parameters, *self.record.common}
        if unknown := next((name for name in self.options if name not in known), None):
            raise TypeError(f"{self.record.name} has no option {unknown}; {_similar(unknown, known - {'steps'})}")
        required = [name for name, p in self.record.parameters.items() if p.default is p.empty and name != "steps"]
        if missing := [name for name in required if name not in self.options]:
            raise TypeError(f"{self.record.name} needs {' and '.join(f'{name}=' for name in missing)}")


def _record_of(method: str | type[Pruner] | Method) -> Method:
    if isinstance(method, Method):
        return method
    if isinstance(method, str):
        if method not in METHODS:
            raise ValueError(f"there is no method {method!r}; {_similar(method, set(METHODS))}")
        return METHODS[method]
    if isinstance(method, type) and issubclass(method, Pruner):
        return METHODS.record_of(method, method.__name__)
    raise TypeError(f"method is {method!r}; give the name of a method, such as 'flipout', or a subclass of Pruner")


def _similar(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"


def add_penalty(pruner: Pruner) -> None:
    """Add the gradient of the method's penalty, if it has one, to the gradients of a step.

    Once a step, so that gradient accumulation does not count it twice. It does not go through the hooks of data
    parallelism: the penalty is the same on every rank.
    """
    penalty = getattr(pruner, "penalty", None)
    if penalty is None:
        return
    weights = [weight.parameter for weight in pruner.weights if weight.parameter.grad is not None]
    with torch.enable_grad():
        value: Tensor = penalty()
    if not weights or not value.requires_grad:
        return
    for weight, grad in zip(weights, torch.autograd.grad(value, weights, allow_unused=True), strict=True):
        if grad is not None and weight.grad is not None:
            weight.grad.add_(grad)


class PruningSession:
    """A pruner and what a trainer's checkpoint has to hold for it.

    `total` is the optimizer step of the trainer at which the schedule ends. `released` is whether early stopping and
    the comparison of checkpoints have begun.
    """

    def __init__(self, recipe: PrunerRecipe) -> None:
        self.recipe = recipe
        self.pruner: Pruner | None = None
        self.released = False
        self._attached = False
        self._total = 0
        self._state: dict[str, Any] = {}
        self._model: weakref.ref[nn.Module] | None = None

    def load(self, state: Mapping[str, Any]) -> None:
        """Keep the state of a checkpoint for the next start. An empty one was saved before training started."""
        if state and not (isinstance(state.get("steps"), int) and isinstance(state.get("total"), int)):
            raise ValueError("this is not the state of a Prune callback: it has no numbers `steps` and `total`")
        self._state, self._model = dict(state), None

    def state(self) -> dict[str, Any]:
        """Everything needed to continue: plain data and tensors. Empty before the first start."""
        if not self._attached or self.pruner is None:
            return self._state
        steps = self.pruner.schedule.steps
        return {"steps": steps, "total": self._total, "released": self.released, "pruner": self.pruner.state_dict()}

    def start(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, length: Callable[[], int], done: int, **further: Any
    ) -> Pruner:
        """Attach a pruner: with the loaded state, with that of the last training of this model, or a new one.

        `length()` is the number of optimizer steps of the whole training, of which `done` are taken.
        """
        self.stop(quietly=True)
        state = self._state if self._model is None or self._model() is model else {}
        steps = self._steps(state, length, done)
        self.pruner = self.recipe.build(model, optimizer, steps, **further)
        if any(weight.view.key is not None for weight in self.pruner.weights):
            self.pruner.remove()
            raise ValueError(
                "the Prune callback is incompatible with sharded weights (FSDP2, tensor parallel), because a trainer "
                "saves its state on one rank alone: use DistributedDataParallel, or a loop of your own and "
                "torch.distributed.checkpoint"
            )
        self._attached, self._model = True, weakref.ref(model)
        self._total = state.get("total", done + self.pruner.schedule.steps)
        self.released = bool(state.get("released", False))
        if state:
            try:
                self.pruner.load_state_dict(state["pruner"])
            except BaseException:
                self._state = state
                self._detach(quietly=True)
                raise
        self._state = {}
        return self.pruner

    def _steps(self, state: Mapping[str, Any], length: Callable[[], int], done: int) -> int:
        given, counts = self.recipe.steps, self.recipe.needs_steps
        if not state:
            return given or max(1, length() - done if counts else 1)
        saved: int = state["steps"]
        if given not in (None, saved):
            raise ValueError(
                f"the checkpoint was saved with a schedule of {saved:,} steps, and the callback has steps={given:,}. A "
                f"schedule cannot be changed once it has started: give steps={saved}, or leave steps= out"
            )
        if given is None and counts:
            with contextlib.suppress(ValueError):  # a training without a fixed length keeps the saved schedule
                _compare(length(), state["total"], saved)
        return saved

    def stop(self, *, quietly: bool = False) -> None:
        """Detach the pruner and keep its state. The zeros stay. `quietly` leaves the warnings of `remove` out."""
        if self._attached:
            self._state = self.state()
            self._detach(quietly)

    def _detach(self, quietly: bool) -> None:
        self._attached = False
        if self.pruner is not None:
            with warnings.catch_warnings():
                if quietly:
                    warnings.simplefilter("ignore", UnfinishedWarning)
                self.pruner.remove()


def _compare(length: int, planned: int, steps: int) -> None:
    if length != planned:
        warnings.warn(
            f"training now ends at step {length:,}, but pruning was planned for an end at step {planned:,}. The "
            f"schedule of {steps:,} steps stays as it is. Give steps={steps} to say that you want this",
            ChangedLengthWarning,
            stacklevel=4,
        )
