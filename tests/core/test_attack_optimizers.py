"""Random trainings under many optimizers, some of them not torch's: exact counts and zeros at every step."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout
from tests.attacks import seeds
from tests.helpers import assert_masked, batches, cross_entropy, make, mlp

pytestmark = [pytest.mark.slow, pytest.mark.attack]


class Lion(torch.optim.Optimizer):
    """Sign of an interpolated momentum, decoupled weight decay (Chen et al., 2023)."""

    def __init__(self, params: Iterable[Tensor], lr: float = 1e-3, decay: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                parameter.mul_(1 - group["lr"] * group["decay"])
                parameter.add_((momentum * 0.9 + parameter.grad * 0.1).sign_(), alpha=-group["lr"])
                momentum.lerp_(parameter.grad, 0.01)


class Muon(torch.optim.Optimizer):
    """Orthogonalised momentum for matrices: an update of one weight depends on all others of its matrix."""

    def __init__(self, params: Iterable[Tensor], lr: float = 0.02) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                update = momentum.mul_(0.95).add_(parameter.grad)
                if update.ndim == 2:
                    left, _, right = torch.linalg.svd(update, full_matrices=False)
                    update = left @ right
                parameter.add_(update, alpha=-group["lr"])


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4),
    "maximize": lambda model: torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, maximize=True),
    "foreach": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True, weight_decay=1e-3),
    "adamax": lambda model: torch.optim.Adamax(model.parameters(), lr=0.01),
    "nadam": lambda model: torch.optim.NAdam(model.parameters(), lr=0.01, decoupled_weight_decay=True),
    "radam": lambda model: torch.optim.RAdam(model.parameters(), lr=0.01),
    "rmsprop": lambda model: torch.optim.RMSprop(model.parameters(), lr=0.005, momentum=0.9, centered=True),
    "rprop": lambda model: torch.optim.Rprop(model.parameters(), lr=0.005),
    "adadelta": lambda model: torch.optim.Adadelta(model.parameters()),
    "adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.05),
    "asgd": lambda model: torch.optim.ASGD(model.parameters(), lr=0.05),
    "adafactor": lambda model: torch.optim.Adafactor(model.parameters(), lr=0.01),
    "lion": lambda model: Lion(model.parameters()),
    "muon": lambda model: Muon(model.parameters()),
}
SCHEDULES: list[Any] = [None, "paper", lambda s, n: flipout.Cubic(s, n), lambda s, n: flipout.OneShot(s, n, 0.3)]


@pytest.mark.parametrize("seed", seeds(90))
def test_random_trainings_under_many_optimizers(seed: int) -> None:
    chance = random.Random(f"optimizers {seed}")
    method = chance.choice([name for name in flipout.METHODS if name not in ("dense", "keep-zeros")])
    optimizer_name = chance.choice(sorted(OPTIMIZERS))
    steps, sparsity = chance.randint(40, 90), round(chance.uniform(0, 0.97), 3)
    options: dict[str, Any] = {"sparsity": sparsity, "steps": steps, "seed": seed}
    options["scope"], options["floor"] = chance.choice(["global", "layer"]), chance.choice([0, 1, 0.01])
    if flipout.METHODS[method].takes_schedule:
        options["schedule"] = chance.choice(SCHEDULES)
    clip, accumulate = chance.choice([None, 0.5]), chance.choice([1, 1, 3])
    model = mlp(seed)
    optimizer = OPTIMIZERS[optimizer_name](model)
    pruner = make(method, model, optimizer, **options)
    for number, (x, y) in enumerate(batches(steps * accumulate, seed=seed), 1):
        cross_entropy(model(x), y).backward()
        if number % accumulate:
            continue
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=chance.random() < 0.5)
        assert_masked(pruner)
    assert pruner.finished
    assert pruner.nonzero == flipout.schedules.nonzero(pruner.prunable, sparsity)
    for weight in pruner.weights:
        assert torch.isfinite(weight.parameter).all()
