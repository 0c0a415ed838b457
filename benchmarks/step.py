"""What pruning adds to a step, and a pruning itself, against the textbook's version and SGD's own work."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import flipout
from flipout.schedules import Pruning
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
    """The paper's FlipOut on some weights, with gradients, its own first pruning far away."""

    method: type[flipout.FlipOut] = flipout.PaperFlipOut

    def __init__(self, weights: list[Tensor]) -> None:
        model = nn.ParameterList([nn.Parameter(weight.clone()) for weight in weights])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
        self.pruner = self.method(model, optimizer, sparsity=SPARSITY, steps=10**9, include="*", compile=True)
        self.keep = round(self.pruner.prunable * (1 - SPARSITY))
        self.renew()

    def renew(self) -> None:
        """New gradients: each piece of work adds noise to them, and they would grow without bound."""
        for layer in self.pruner.layers:
            layer.weight.grad = torch.full_like(layer.weight, 1e-3)

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
        for layer in self.pruner.layers:
            layer.weight.copy_(torch.where(layer.mask, layer.weight, torch.randn_like(layer.weight) * 1e-2))
            layer.mask.fill_(True)
            layer.count()


class WithHiddenValues(Ours):
    """FlipOut with second chances, after its first pruning: pruned weights have hidden values."""

    method = flipout.FlipOut

    def __init__(self, weights: list[Tensor]) -> None:
        super().__init__(weights)
        prune_for_the_first_time(self.pruner)


@torch.no_grad()
def prune_for_the_first_time(pruner: flipout.Pruner) -> None:
    """So that pruned weights have hidden values. The training has 10^9 steps; its next pruning is far away."""
    pruner._progress.step = 5 * 10**7
    pruner.prune(Pruning(pruner.step, SPARSITY, round(pruner.prunable * (1 - SPARSITY))))


def measure(weights: list[Tensor], repetitions: int) -> Times:
    """The times of SGD's step, our work around one, the textbook's, and of a pruning in each way."""
    sgd, ours, textbook, revival = plain_sgd(weights), Ours(weights), Textbook(weights), WithHiddenValues(weights)
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
        "revival": revival.around,
        "textbook": textbook_around,
    }
    prunings: dict[str, Work] = {
        "select": ours.prune,
        "argsort": lambda: textbook.prune_by_sorting(ours.keep),
        "kthvalue": lambda: textbook.prune_by_kthvalue(ours.keep),
    }
    undo = {"ours": ours.renew, "revival": revival.renew, "textbook": renew}
    return interleaved(around, repetitions, undo=undo) | interleaved(prunings, repetitions, undo={"select": ours.undo})


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
    seen = {id(pruner.model), id(pruner.optimizer)} | {id(layer.module) for layer in pruner.layers}
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
