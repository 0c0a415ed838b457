"""Small networks, small data, and a training loop, all fixed by a seed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import flipout

cross_entropy = nn.functional.cross_entropy


def mlp(seed: int = 0) -> nn.Sequential:
    """12 * 16 + 16 * 8 + 8 * 4 = 352 weights in three layers."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))


def convnet(seed: int = 0) -> nn.Sequential:
    """A convolution, a norm, dropout and a classifier, on images of 1 x 6 x 6."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(96, 4)
    )


def batches(count: int, *, seed: int = 0, shape: tuple[int, ...] = (12,)) -> Iterator[tuple[Tensor, Tensor]]:
    """The same batches for the same seed, whatever else draws random numbers."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        x = torch.randn(16, *shape, generator=generator)
        yield x, x.flatten(1)[:, :4].argmax(1)


def sgd(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, **options})


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9, weight_decay=5e-4),
    "nesterov": lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9, nesterov=True),
    "sgd-foreach": lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9, weight_decay=5e-4, foreach=True),
    "sgd-fused": lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9, weight_decay=5e-4, fused=True),
    "adam": lambda m: torch.optim.Adam(m.parameters(), 0.01, weight_decay=5e-4),
    "adam-foreach": lambda m: torch.optim.Adam(m.parameters(), 0.01, foreach=True),
    "adam-fused": lambda m: torch.optim.Adam(m.parameters(), 0.01, fused=True),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), 0.01),
    "adamw-amsgrad-fused": lambda m: torch.optim.AdamW(m.parameters(), 0.01, amsgrad=True, fused=True),
    "rmsprop": lambda m: torch.optim.RMSprop(m.parameters(), 0.01, momentum=0.5, centered=True),
    "adagrad": lambda m: torch.optim.Adagrad(m.parameters(), 0.01),
    "groups": lambda m: torch.optim.SGD(
        [{"params": [p], "lr": 0.05 * (i + 1)} for i, p in enumerate(m.parameters())], momentum=0.9
    ),
}


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int,
    *,
    seed: int = 0,
    skip: int = 0,
    penalty: Callable[[], Tensor] | None = None,
    after: Callable[[], None] | None = None,
    shape: tuple[int, ...] = (12,),
) -> None:
    """Steps `skip` to `steps` of the training of `seed`."""
    for number, (x, y) in enumerate(batches(steps, seed=seed, shape=shape)):
        if number < skip:
            continue
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        if penalty is not None:
            loss = loss + penalty()
        loss.backward()
        optimizer.step()
        if after is not None:
            after()


def full_gradients(model: nn.Module, data: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """The gradients of the summed loss, from a copy of the model, which has none of the hooks of a pruner."""
    twin = copy.deepcopy(model)
    loss = torch.stack([cross_entropy(twin(x), y) for x, y in data]).sum()
    names, parameters = zip(*twin.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def make(
    method: str, model: nn.Module, optimizer: torch.optim.Optimizer, *, data: Any = None, **options: Any
) -> flipout.Pruner:
    """Any method by its name, with the batches that SNIP needs."""
    options = {"sparsity": 0.9, "steps": 40, **options}
    if method == "snip":
        options |= {"batches": data or list(batches(2, seed=9)), "loss_fn": cross_entropy}
    return flipout.METHODS[method](model, optimizer, **options)


def assert_masked(pruner: flipout.Pruner) -> None:
    """Pruned weights are 0.0, not -0.0, and the masks keep as many as the pruner says."""
    for weight in pruner.weights:
        pruned = weight.parameter.detach()[~weight.mask]
        assert torch.equal(pruned, torch.zeros_like(pruned)), weight.name
        assert not torch.signbit(pruned).any(), weight.name
    assert pruner.nonzero == sum(int(mask.sum()) for mask in pruner.masks.values())


def signs_of(pruner: flipout.Pruner) -> dict[str, Tensor]:
    """The fixed signs of Deep-R."""
    return {weight.name: weight.slots["signs"] for weight in pruner.weights}


def fresh(method: str, **options: Any) -> tuple[nn.Module, torch.optim.Optimizer, flipout.Pruner]:
    """A perceptron, its optimizer, and a pruner that is attached to them."""
    model = mlp()
    optimizer = sgd(model)
    return model, optimizer, make(method, model, optimizer, **options)


def run(model: nn.Module, optimizer: torch.optim.Optimizer, pruner: flipout.Pruner, to: int, skip: int = 0) -> None:
    """`train`, with the penalty that the method needs in the loss."""
    penalty = pruner.penalty if isinstance(pruner, flipout.HoyerSquare) else None
    train(model, optimizer, to, skip=skip, penalty=penalty)


def trained(steps: int = 20) -> tuple[nn.Module, torch.optim.Optimizer, flipout.Pruner]:
    """A perceptron that magnitude pruning has trained for some of 20 steps."""
    model, optimizer, pruner = fresh("magnitude", steps=20)
    train(model, optimizer, steps)
    return model, optimizer, pruner


def same(a: Any, b: Any) -> bool:
    """Whether two nested states are equal, bit for bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return torch.equal(a, b) if isinstance(a, Tensor) else a == b
