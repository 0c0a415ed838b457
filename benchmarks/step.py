"""What pruning adds to a step, and a pruning itself, against the textbook's version and SGD's own work."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

import flipout
from flipout.schedules import Pruning
from flipout.weights import count_weights
from flipout_lab import build

from .textbook import Textbook
from .timing import Times, Work, interleaved

NETWORKS = {
    "lenet-300-100": (1, 28, 28),
    "resnet18": (3, 32, 32),
    "vgg19": (3, 32, 32),
    "densenet121": (3, 32, 32),
}
SPARSITY = 0.9
SMALL_LAYERS = 200, 16
"""The number of small layers, and their number of rows and of columns."""


def weights_of(network: str) -> list[Tensor]:
    """The weights of a network's linear and convolution layers."""
    model = build(network, NETWORKS[network])
    return [parameter.detach() for parameter in model.parameters() if parameter.ndim > 1]


def plain_sgd(weights: list[Tensor]) -> torch.optim.Optimizer:
    """What `step_over_sgd` is measured against, with gradients."""
    parameters = [nn.Parameter(weight.clone()) for weight in weights]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter) * 1e-3
    return torch.optim.SGD(parameters, lr=1e-4, momentum=0.9, fused=True)


class Ours:
    """A method on some weights, with gradients, after its first pruning or long before it.

    The training has 10^9 steps, so the next pruning of the plan is far away.
    """

    def __init__(
        self,
        weights: list[Tensor],
        method: type[flipout.Gradual] = flipout.PaperFlipOut,
        *,
        pruned: bool = False,
        compile: bool | Literal["auto"] = "auto",  # noqa: A002
    ) -> None:
        model = nn.ParameterList([nn.Parameter(weight.clone()) for weight in weights])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
        self.pruner = method(model, optimizer, sparsity=SPARSITY, steps=10**9, include="*", compile=compile)
        self.keep = round(self.pruner.prunable * (1 - SPARSITY))
        if pruned:
            prune_for_the_first_time(self.pruner)
        self.renew()

    def renew(self) -> None:
        """New gradients: each piece of work adds noise to them, and they would grow without bound."""
        for weight in self.pruner.weights:
            weight.parameter.grad = torch.full_like(weight.parameter, 1e-3)

    @torch.no_grad()
    def around(self) -> None:
        """The work before and after a step."""
        self.pruner._before_step(1.0)
        self.pruner._after_step()

    @torch.no_grad()
    def prune(self) -> None:
        """A pruning as it takes place in training."""
        self.pruner.prune(Pruning(self.pruner.step, SPARSITY, self.keep))

    @torch.no_grad()
    def undo(self) -> None:
        """So that it can be timed again."""
        self.pruner.events.clear()
        for weight in self.pruner.weights:
            weight.parameter.add_(torch.randn_like(weight.parameter).mul_(1e-2).mul_(~weight.mask))
            weight.mask.fill_(True)
        count_weights(self.pruner.weights)


@torch.no_grad()
def prune_for_the_first_time(pruner: flipout.Pruner) -> None:
    """Prune at step 5 * 10^7 of 10^9, as planned. With second chances, pruned weights then have hidden values."""
    pruner._progress.step = 5 * 10**7
    pruner.prune(Pruning(pruner.step, SPARSITY, round(pruner.prunable * (1 - SPARSITY))))


def measure(weights: list[Tensor], repetitions: int) -> Times:
    """The times of SGD's step, our work around one, the textbook's, and of a pruning in each way."""
    sgd, ours, textbook = plain_sgd(weights), Ours(weights), Textbook(weights)
    chances = Ours(weights, flipout.FlipOut, pruned=True)
    grads = [torch.full_like(weight, 1e-3) for weight in weights]

    def textbook_around() -> None:
        textbook.before_step(grads)
        textbook.after_step()

    def renew() -> None:
        for grad in grads:
            grad.fill_(1e-3)

    around: dict[str, Work] = {
        "sgd": sgd.step,
        "ours": ours.around,
        "second_chances": chances.around,
        "textbook": textbook_around,
    }
    prunings: dict[str, Work] = {
        "select": ours.prune,
        "argsort": lambda: textbook.prune_by_sorting(ours.keep),
        "kthvalue": lambda: textbook.prune_by_kthvalue(ours.keep),
    }
    undo = {"ours": ours.renew, "second_chances": chances.renew, "textbook": renew}
    return interleaved(around, repetitions, undo=undo) | interleaved(prunings, repetitions, undo={"select": ours.undo})


def measure_many_small_layers(repetitions: int) -> Times:
    """The times of a step of fused SGD and of our work around one, for many small layers, not compiled.

    FlipOut has second chances: `flipout` is before its first pruning, `flipout_second_chances` after it.
    """
    number, size = SMALL_LAYERS
    weights = [torch.randn(size, size) for _ in range(number)]
    ours = {
        "magnitude": Ours(weights, flipout.GlobalMagnitude, pruned=True, compile=False),
        "flipout": Ours(weights, flipout.FlipOut, compile=False),
        "flipout_second_chances": Ours(weights, flipout.FlipOut, pruned=True, compile=False),
        "flipout_paper": Ours(weights, compile=False),
    }
    around: dict[str, Work] = {"sgd": plain_sgd(weights).step}
    around |= {name: each.around for name, each in ours.items()}
    return interleaved(around, repetitions, undo={name: each.renew for name, each in ours.items()})


def bytes_per_weight() -> dict[str, float]:
    """What is kept for ResNet18's weights while they train, the mask included; for FlipOut after its first pruning."""
    figures = {}
    methods = {"flipout": flipout.FlipOut, "flipout_paper": flipout.PaperFlipOut, "magnitude": flipout.GlobalMagnitude}
    for name, method in methods.items():
        model = build("resnet18", NETWORKS["resnet18"])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        pruner = method(model, optimizer, sparsity=0.9, steps=100, compile=False)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        while not pruner.events:
            optimizer.step()
        figures[name] = held_bytes(pruner) / pruner.prunable
    return figures


def held_bytes(pruner: flipout.Pruner) -> int:
    """All that a pruner keeps: whatever tensors it leads to, less the model and the optimizer."""
    seen = {id(pruner.model), id(pruner.optimizer)} | {id(weight.module) for weight in pruner.weights}
    found: dict[int, int] = {}
    heap: list[object] = [vars(pruner)]
    while heap:
        thing = heap.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, Tensor):
            storage = thing.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        elif isinstance(thing, dict):
            heap.extend(thing.values())
        elif isinstance(thing, (list, tuple, set)):
            heap.extend(thing)
        elif hasattr(thing, "__dict__"):
            heap.append(vars(thing))
    weights = {parameter.untyped_storage().data_ptr() for parameter in pruner.model.parameters()}
    grads = {p.grad.untyped_storage().data_ptr() for p in pruner.model.parameters() if p.grad is not None}
    return sum(size for pointer, size in found.items() if pointer not in weights | grads)
