"""From what a user passes to a callback to a pruner: a method by its name or class, with its options."""

from __future__ import annotations

import difflib
from typing import Any

import torch
from torch import Tensor, nn

from .. import METHODS, Method, Pruner, Schedule

ATTACHMENT = frozenset({"model", "optimizer"})
"""Arguments that only the trainer knows."""


class PrunerRecipe:
    """A method and its options, checked before training starts. `build` makes the pruner."""

    def __init__(self, method: str | type[Pruner] | Method, steps: int | None, options: dict[str, Any]) -> None:
        if steps is not None and (not isinstance(steps, int) or isinstance(steps, bool) or steps < 1):
            raise ValueError(
                f"steps is {steps!r}; give the number of optimizer steps of the whole training, at least 1"
            )
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

    def _check_options(self) -> None:
        """Refuse what the constructor would refuse, where the user sees it: not after the data is loaded."""
        known = {*self.record.parameters, *self.record.common} - ATTACHMENT
        if unknown := [name for name in self.options if name not in known]:
            near = difflib.get_close_matches(unknown[0], known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; it takes {', '.join(sorted(known - {'steps'}))}"
            raise TypeError(f"{self.record.name} has no option {unknown[0]}{hint}")
        required = [name for name, p in self.record.parameters.items() if p.default is p.empty and name != "steps"]
        if missing := [name for name in required if name not in self.options]:
            raise TypeError(f"{self.record.name} needs {' and '.join(f'{name}=' for name in missing)}")


def _record_of(method: str | type[Pruner] | Method) -> Method:
    if isinstance(method, Method):
        return method
    if isinstance(method, str):
        if method not in METHODS:
            near = difflib.get_close_matches(method, METHODS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the methods are {', '.join(METHODS)}"
            raise ValueError(f"there is no method {method!r}; {hint}")
        return METHODS[method]
    if isinstance(method, type) and issubclass(method, Pruner):
        return METHODS.record_of(method, method.__name__)
    raise TypeError(f"method is {method!r}; give the name of a method, such as 'flipout', or a subclass of Pruner")


def refuse_scaled_penalty(recipe: PrunerRecipe, scaler: Any) -> None:
    """Refuse a penalty next to a gradient scaler: whether gradients are still scaled depends on the optimizer."""
    if recipe.record.needs.penalty and scaler is not None:
        raise ValueError(
            f"{recipe.record.name} adds a penalty to the loss, which this callback does not do under a gradient "
            "scaler: train in bfloat16 or float32, or write a loop of your own that adds pruner.penalty() to the loss"
        )


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
