"""Random trainings for the attacks: networks, methods, optimizers with groups, and loops as people write them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import flipout
from tests.core.test_attack_optimizers import OPTIMIZERS, Lion, Muon
from tests.helpers import assert_masked, batches, convnet, cross_entropy, make, mlp
from tests.runtime.clipping import close, kept_norm
from tests.runtime.test_interruptions import SAM

METHODS = [name for name in flipout.METHODS if name not in ("dense", "keep-zeros")]
Make = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
WITH_GROUPS: dict[str, Make] = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=5e-4),
    "nesterov": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True),
    "fused": lambda groups: torch.optim.AdamW(groups, lr=0.01, fused=True),
    "tensor rate": lambda groups: torch.optim.Adam(groups, lr=torch.tensor(0.01)),
    "lion": lambda groups: Lion(groups),  # type: ignore[arg-type]
    "muon": lambda groups: Muon(groups),  # type: ignore[arg-type]
}


class RandomTraining:
    """A training that follows from a seed. `step` takes one step; everything that must hold after it is checked."""

    def __init__(self, seed: int, *, methods: list[str] | None = None, plain: bool = False) -> None:
        self.seed, chance = seed, random.Random(f"training {seed}")
        self.images = chance.random() < 0.3
        self.model: nn.Module = convnet(seed) if self.images else mlp(seed)
        self.steps = chance.randint(24, 48)
        self.accumulate = chance.choice([1, 1, 1, 2, 3])
        self.clip = chance.choice([None, "huge", "norm", "value"])
        self.keeps_gradients = chance.random() < 0.5  # zero_grad(set_to_none=False)
        self.method = chance.choice(methods or METHODS)
        self.optimizer = self._optimizer(chance)
        way = "plain" if plain or isinstance(self.optimizer, SAM) else chance.choice(["plain", "scaler", "closure"])
        fused = any(group.get("fused") for group in self.optimizer.param_groups)
        ignored = (fused and self.clip is not None) or isinstance(self.optimizer, Lion | Muon)  # which take no closure
        self.way = "closure" if isinstance(self.optimizer, SAM) else "plain" if ignored else way
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** chance.choice([0, 8, 16]), growth_interval=7)
        self.options = self._options(chance)
        self.pruner = make(self.method, self.model, self.optimizer, data=self._examples(), **self.options)
        self.data = list(batches(self.steps * self.accumulate, seed=seed, shape=self._shape))

    @property
    def _shape(self) -> tuple[int, ...]:
        return (1, 6, 6) if self.images else (12,)

    def _examples(self) -> list[tuple[Tensor, Tensor]]:
        return list(batches(2, seed=9, shape=self._shape))

    def _optimizer(self, chance: random.Random) -> torch.optim.Optimizer:
        kind = chance.choice(["one group", "groups", "groups", "sam"])
        if kind == "sam":
            return SAM(self.model.parameters(), lr=0.05, momentum=0.9)
        if kind == "one group":
            names = [name for name in OPTIMIZERS if name not in ("maximize", "rprop")]
            return OPTIMIZERS[chance.choice(sorted(names))](self.model)
        parameters = list(self.model.parameters())
        chance.shuffle(parameters)
        cut = chance.randint(1, len(parameters) - 1)
        groups = [{"params": parameters[:cut]}, {"params": parameters[cut:]}]
        return WITH_GROUPS[chance.choice(sorted(WITH_GROUPS))](groups)

    def _options(self, chance: random.Random) -> dict[str, Any]:
        info = flipout.METHODS[self.method]
        options: dict[str, Any] = {
            "sparsity": round(chance.uniform(0.3, 0.95), 3),
            "steps": self.steps,
            "seed": self.seed,
            "scope": chance.choice(["global", "global", "layer"]),
            "floor": chance.choice([0, 0, 1, 0.01]),
        }
        if info.takes_schedule and chance.random() < 0.3:
            options["schedule"] = chance.choice(["paper", flipout.Cubic])
        if self.method in ("magnitude", "flipout") and chance.random() < 0.6:
            options["second_chances"] = flipout.SecondChances(
                until=chance.choice([0.6, 0.7, 1.0]),  # 0.5 may be before the only pruning of the paper's schedule
                smooth=chance.random() < 0.7,
                events=chance.choice([10, 40]),
                trust=chance.choice([0.3, float("inf")]),
            )
        return options

    def step(self, number: int) -> None:
        """Take a step, in the way of this training."""
        if self.way == "closure":
            self.optimizer.step(lambda: float(self._backward(number)))
        else:
            self._backward(number)
            if self.way == "scaler":
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()

    def _backward(self, number: int) -> Tensor:
        """Compute the gradients of a step, and clip them."""
        self.optimizer.zero_grad(set_to_none=not self.keeps_gradients)
        total = torch.zeros(())
        for x, y in self.data[number * self.accumulate : (number + 1) * self.accumulate]:
            loss = cross_entropy(self.model(x), y) / self.accumulate
            if isinstance(self.pruner, flipout.HoyerSquare):
                loss = loss + self.pruner.penalty()
            (self.scaler.scale(loss) if self.way == "scaler" else loss).backward()
            total = total + loss.detach()
        if self.clip is not None:
            if self.way == "scaler":
                self.scaler.unscale_(self.optimizer)
            self._clip()
        return total

    def _clip(self) -> None:
        if self.clip == "value":
            nn.utils.clip_grad_value_(self.model.parameters(), 0.05)
            return
        expected = kept_norm(self.pruner)
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), 1e9 if self.clip == "huge" else 0.1))
        assert close(norm, expected), (norm, expected)

    def check(self) -> None:
        """What holds between any two steps."""
        pruner = self.pruner
        assert_masked(pruner)
        pruner.check()
        assert all(parameter.isfinite().all() for parameter in self.model.parameters())
        moves = self.method == "deep-r" or not pruner.events or pruner.events[-1].step == pruner.step
        if not moves:  # the masks are those of the gradients
            for weight in pruner.weights:
                grad = weight.parameter.grad
                assert grad is None or not grad[~weight.mask].any(), weight.name

    def finish(self, first: int = 0) -> None:
        """Take the remaining steps, and check each of them."""
        for number in range(first, self.steps):
            self.step(number)
            self.check()
        assert self.pruner.finished or self.pruner.step < self.steps  # a scaler may skip steps
        if self.pruner.finished and self.method != "hoyer-square":
            assert self.pruner.nonzero == flipout.schedules.nonzero(self.pruner.prunable, self.options["sparsity"])

    def state(self) -> dict[str, Any]:
        """Everything that a checkpoint holds."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "pruner": self.pruner.state_dict(),
            "scaler": self.scaler.state_dict(),
            "random": torch.get_rng_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.pruner.load_state_dict(state["pruner"])
        self.scaler.load_state_dict(state["scaler"])
        torch.set_rng_state(state["random"])
