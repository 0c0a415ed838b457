"""Train a configuration, once without a break and once resumed half-way, and hash everything after each event."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import flipout

from .configurations import Configuration

Look = dict[str, Any]
"""What is seen after a step: the step, counts, and hashes."""


class Trained(NamedTuple):
    """What is seen in a training without a break, and in the same training from half of its steps on, resumed."""

    looks: list[Look]
    resumed: list[Look]


def train(configuration: Configuration) -> Trained:
    """Train a configuration both ways."""
    with _one_thread():
        half = configuration.steps // 2
        run = _Run(configuration, seed=0)
        run.look_after_events()
        run.go_on(half)
        saved, looks_until_then = run.save(), len(run.looks)
        run.go_on(configuration.steps)
        again = _Run(configuration, seed=1)
        again.load(saved)
        again.go_on(configuration.steps)
        return Trained(run.looks, [*run.looks[:looks_until_then], *again.looks])


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums over many numbers depend on the number of threads, and a kernel that did not compile has other bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", flipout.DeadLayerWarning)
            warnings.simplefilter("ignore", flipout.UnfinishedWarning)
            warnings.simplefilter("error", flipout.NotCompiledWarning)
            yield
    finally:
        torch.set_num_threads(threads)


@dataclass
class _Run:
    """A network in training, and what was seen so far."""

    configuration: Configuration
    seed: int
    step: int = 0
    events: int = 0
    looks: list[Look] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model = self.configuration.network(self.seed)
        self.optimizer = self.configuration.optimizer(self.model)
        self.pruner = self.configuration.pruner(self.model, self.optimizer)
        scaled = self.configuration.scaled
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=4, enabled=scaled)

    def go_on(self, until: int) -> None:
        """Train until a step."""
        for number in range(self.step, until):
            self._learn(number)
            gradients = digest(_gradients(self.model))  # as user code sees them
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            self.step = number + 1
            self.look_after_events(gradients)
            if self.step in self.configuration.shrunk_after:
                self.pruner.shrink(torch.zeros(6, 2, 6, 6))
                self.look(gradients)
        if until == self.configuration.steps:
            with self.pruner.expanded():
                self.look()
            self.pruner.remove()

    def _learn(self, number: int) -> None:
        """Accumulate the gradients of a step."""
        penalty = getattr(self.pruner, "penalty", None)
        batches = self.configuration.accumulated
        for batch in range(number * batches, (number + 1) * batches):
            loss = self.configuration.loss(self.model, batch)
            if penalty is not None:
                loss = loss + penalty()
            self.scaler.scale(loss).backward()
        if batches > 1:
            nn.utils.clip_grad_norm_(self.model.parameters(), 2.0)

    def look_after_events(self, gradients: str = "") -> None:
        """Look at a pruner that has just pruned, or whenever the configuration asks for it."""
        every = self.configuration.every
        if len(self.pruner.events) > self.events or (every and self.step and self.step % every == 0):
            self.look(gradients)

    def look(self, gradients: str = "") -> None:
        pruner, self.events = self.pruner, len(self.pruner.events)
        tensors = dict([*self.model.named_parameters(), *self.model.named_buffers()])
        look: Look = {"step": self.step, "events": self.events, "nonzero": pruner.nonzero}
        if pruner.events:
            look |= {"grown": pruner.events[-1].grown, "kept": list(pruner.events[-1].kept.values())}
        look |= {"weights": digest(tensors.items()), "masks": digest(pruner.masks.items())}
        look |= {f"statistic {name}": digest(values.items()) for name, values in sorted(pruner.statistics.items())}
        look |= {"optimizer": digest(_optimizer_state(self.model, self.optimizer))}
        self.looks.append(look | ({"gradients": gradients} if gradients else {}))

    def save(self) -> dict[str, Any]:
        with self.pruner.expanded():
            saved = {
                "step": self.step,
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scaler": self.scaler.state_dict(),
                "pruner": self.pruner.state_dict(),
            }
            return {key: _copied(value) for key, value in saved.items()}

    def load(self, saved: Mapping[str, Any]) -> None:
        self.step = saved["step"]
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.scaler.load_state_dict(saved["scaler"])
        self.pruner.load_state_dict(saved["pruner"])
        self.events = len(self.pruner.events)


def digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """A hash of the names, types, shapes and bits of tensors; of a sharded one, of what this rank holds."""
    result = hashlib.sha256()
    for name, tensor in tensors:
        local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()
        result.update(f"{name} {local.dtype} {tuple(local.shape)}".encode())
        result.update(local.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return result.hexdigest()[:12]


def _gradients(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]


def _optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters():
        for key, value in sorted(optimizer.state.get(parameter, {}).items()):
            if isinstance(value, Tensor):
                yield f"{name} {key}", value


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: _copied(each) for key, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value


def difference(expected: list[Look], actual: list[Look]) -> str:
    """What differs between two trainings, in the first look that differs; empty if they are equal."""
    for one, other in zip(expected, actual, strict=False):
        if one != other:
            keys = [key for key in dict.fromkeys([*one, *other]) if one.get(key) != other.get(key)]
            lines = [f"  {key}: {one.get(key, 'missing')} became {other.get(key, 'missing')}" for key in keys]
            place = f"after step {one['step']} ({one['events']} events)"
            return "\n".join([f"the first difference is {place}{_rank(one)}, in {', '.join(keys)}:", *lines])
    if len(expected) != len(actual):
        steps = [[look["step"] for look in looks] for looks in (expected, actual)]
        return f"the steps with a look were {steps[0]} and became {steps[1]}"
    return ""


def _rank(look: Look) -> str:
    return f" on rank {look['rank']}" if "rank" in look else ""
