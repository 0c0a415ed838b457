"""The trainings whose bits are recorded: methods, second chances, units, noise, shrinking, shards, compiled or eager.

Names of the library that may change stand in the first functions alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import flipout

Options = dict[str, Any]


def permanent() -> Options:
    """Pruned weights never come back."""
    return {"second_chances": None}


def second_chances(
    *,
    until: float = 0.7,
    share: float = 0.2,
    rate: float = 0.5,
    trust: float = 0.3,
    thresholding: bool = True,
    events: int = 8,
) -> Options:
    """Pruned weights keep a hidden value and can come back. `thresholding` moves kept weights towards the threshold."""
    settings = {"until": until, "share": share, "rate": rate, "trust": trust, "smooth": thresholding, "events": events}
    return {"second_chances": flipout.SecondChances(**settings)}  # type: ignore[arg-type]


def geometric(sparsity: float, steps: int, prunings: int, start: float = 0.1, end: float = 0.7) -> Options:
    """Prunings of the same share, evenly spread over a part of training."""
    schedule = flipout.Geometric(sparsity, steps, prunings=prunings, window=(start, end))
    return {"sparsity": sparsity, "steps": steps, "schedule": schedule}


def noise_of(scale: float, relative_to: Any, seed: int) -> Options:
    """Gradient noise with all of its settings."""
    return {"noise": flipout.GradientNoise(scale, relative_to=relative_to, seed=seed)}


# Networks. All random numbers are uniform, because torch's normal ones depend on the processor.


def perceptron(seed: int) -> nn.Module:
    """12 * 16 + 16 * 8 + 8 * 4 = 352 prunable weights."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))


def with_zeros(seed: int) -> nn.Module:
    """A perceptron of which some weights are zero."""
    model = perceptron(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("weight"):
                parameter.mul_(torch.rand(parameter.shape) < 0.4)
    return model


def many_small_layers(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(12)))


def large_layer(seed: int) -> nn.Module:
    """512 * 640 weights, more than one block of an eager kernel, and a small layer."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(512, 640), nn.Linear(640, 8))


class Residual(nn.Module):
    """Convolutions with norms, a sum of two branches, and a classifier, on images of 2 x 6 x 6."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first_norm = nn.Conv2d(2, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.inner, self.inner_norm = nn.Conv2d(8, 12, 3, padding=1), nn.BatchNorm2d(12)
        self.outer, self.outer_norm = nn.Conv2d(12, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.last, self.head = nn.Conv2d(8, 10, 1), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first_norm(self.stem(x)).relu()
        x = (x + self.outer_norm(self.outer(self.inner_norm(self.inner(x)).relu()))).relu()
        result: Tensor = self.head(self.last(x).relu().mean((2, 3)))
        return result


def residual(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return Residual()


def sharded(seed: int) -> nn.Module:
    """Weights of which two ranks hold rows, columns, and rows that do not divide by two."""
    torch.manual_seed(seed)
    layers = [nn.Linear(*sizes, bias=False) for sizes in ((12, 10), (10, 7), (7, 3))]
    mesh = init_device_mesh("cpu", (2,))
    for layer, dimension in zip(layers, (0, 1, 0), strict=True):
        layer.weight = nn.Parameter(distribute_tensor(layer.weight.detach(), mesh, [Shard(dimension)]))
    return nn.Sequential(*layers)


# Losses. Each returns the loss of one batch, which the number alone decides.


def uniform(number: int, *shape: int) -> Tensor:
    """Numbers between -1 and 1."""
    return 2 * torch.rand(shape, generator=torch.Generator().manual_seed(number)) - 1


def pull(model: nn.Module, number: int) -> Tensor:
    """Pull each parameter towards a target that moves about: the gradient of an element depends on that element alone.

    No matrix product and no sum has a part in it, so its bits are the same on more kinds of processors. The target
    moves a little at each step, and far every fourth step, so that signs flip and pruned weights come back.
    """
    losses = []
    for position, parameter in enumerate(model.parameters()):
        seeds = position + 1000 * (number // 4), position + 1000 * (number + 500)
        far, near = (uniform(seed, *parameter.shape) for seed in seeds)
        target = 0.2 * near + 0.4 * far
        here: Tensor = parameter
        if isinstance(parameter, DTensor):
            target = distribute_tensor(target, parameter.device_mesh, parameter.placements).to_local()
            here = parameter.to_local()
        losses.append((here - target).square().sum())
    return torch.stack(losses).sum()


def pull_and_call(model: nn.Module, number: int) -> Tensor:
    """`pull`, for pruners that must see the model being called."""
    model.eval()(images(number)[0])
    return pull(model.train(), number)


def call_and_pull(model: nn.Module, number: int) -> Tensor:
    """`pull`, for forms with noise: a training call puts the sample of the step into the weights."""
    with torch.no_grad():
        model(vectors(number)[0])
    return pull(model, number)


def images(number: int) -> tuple[Tensor, Tensor]:
    x = uniform(number, 6, 2, 6, 6)
    return x, x.flatten(1)[:, :4].argmax(1)


def vectors(number: int) -> tuple[Tensor, Tensor]:
    x = uniform(number, 16, 12)
    return x, x[:, :4].argmax(1)


def classify_images(model: nn.Module, number: int) -> Tensor:
    x, y = images(number)
    return nn.functional.cross_entropy(model(x), y)


# Optimizers.


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-3)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), 0.03)


@dataclass(frozen=True)
class Configuration:
    """A training.

    Args:
        method: the name of the method.
        options: the arguments of its constructor, `sparsity` and `steps` among them.
        network: makes the network, from a seed.
        loss: the loss of a batch, from the network and the number of the batch.
        optimizer: makes the optimizer.
        accumulated: the number of batches whose gradients are accumulated in a step. With more than one, the gradients
            are clipped as well.
        scaled: whether a gradient scaler is used.
        shrunk_after: the steps after which the network is shrunk.
        every: a look is taken every so many steps, and not only after events.
    """

    method: str
    options: Mapping[str, Any]
    network: Callable[[int], nn.Module] = perceptron
    loss: Callable[[nn.Module, int], Tensor] = pull
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd
    accumulated: int = 1
    scaled: bool = False
    shrunk_after: frozenset[int] = field(default_factory=frozenset)
    every: int | None = None

    @property
    def steps(self) -> int:
        return int(self.options["steps"])

    @property
    def sharded(self) -> bool:
        return self.network is sharded

    def pruner(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> flipout.Pruner:
        return flipout.METHODS[self.method](model, optimizer, **{"compile": False, **self.options})


BRIEF = {"sparsity": 0.8, "steps": 16}
GRADUAL = geometric(0.9, 20, prunings=5, start=0.05, end=0.6)
EARLY = geometric(0.9, 20, prunings=4, start=0.05, end=0.4)
EXTREME = geometric(0.97, 20, prunings=4, start=0.05, end=0.4)
UNITS = geometric(0.6, 18, prunings=4, start=0.05, end=0.5)
IN_STEPS = {"sparsity": 0.9, "steps": 20}
COMPILED = {"compile": True}

CONFIGURATIONS: dict[str, Configuration] = {
    # FlipOut
    "flipout": Configuration("flipout", BRIEF),
    "flipout-compiled": Configuration("flipout", BRIEF | COMPILED),
    "flipout-early": Configuration("flipout", {"sparsity": 0.9, "steps": 30, "end": 0.2}, every=5),
    "flipout-adam": Configuration("flipout", GRADUAL | second_chances(), optimizer=adam),
    "flipout-noise": Configuration(
        "flipout",
        GRADUAL
        | second_chances(share=0.3, rate=1.0, trust=2.0, thresholding=False, until=0.5)
        | {"noise": 0.5, "seed": 3},
    ),
    "flipout-permanent": Configuration("flipout", GRADUAL | permanent() | {"horizon": 5, "p": 1.5}),
    "flipout-accumulated": Configuration("flipout", GRADUAL | second_chances(), accumulated=2),
    "flipout-many-small-layers": Configuration("flipout", GRADUAL | second_chances(), many_small_layers),
    "flipout-many-small-layers-compiled": Configuration(
        "flipout", GRADUAL | second_chances() | COMPILED, many_small_layers
    ),
    "flipout-large-layer": Configuration(
        "flipout", geometric(0.9, 10, prunings=3, end=0.5) | second_chances(), large_layer
    ),
    "flipout-large-layer-compiled": Configuration(
        "flipout", geometric(0.9, 10, prunings=3, end=0.5) | second_chances() | COMPILED, large_layer
    ),
    # the paper's FlipOut
    "paper": Configuration("flipout-paper", {"sparsity": 0.9375, "steps": 20, "schedule": "paper"}, every=5),
    "paper-compiled": Configuration(
        "flipout-paper", {"sparsity": 0.9375, "steps": 20, "schedule": "paper"} | COMPILED, every=5
    ),
    "paper-scaled": Configuration("flipout-paper", GRADUAL | noise_of(0.1, "weight", seed=2), scaled=True),
    "paper-scaled-second-chances": Configuration(
        "flipout-paper", GRADUAL | second_chances() | noise_of(0.1, "weight", seed=2), scaled=True
    ),
    "paper-accumulated": Configuration("flipout-paper", GRADUAL, accumulated=3),
    "paper-many-small-layers": Configuration("flipout-paper", GRADUAL, many_small_layers),
    "paper-large-layer": Configuration("flipout-paper", geometric(0.9, 10, prunings=3), large_layer),
    "paper-large-layer-compiled": Configuration(
        "flipout-paper", geometric(0.9, 10, prunings=3) | COMPILED, large_layer
    ),
    # other scores
    "magnitude-of-layers": Configuration("magnitude", GRADUAL | {"scope": "layer", "floor": 5}),
    "magnitude-weight-noise": Configuration("magnitude", GRADUAL | noise_of(0.1, "weight", seed=5)),
    "magnitude-second-chances": Configuration("magnitude", GRADUAL | second_chances(until=1.0) | {"floor": 0.05}),
    "magnitude-compiled": Configuration("magnitude", GRADUAL | COMPILED),
    "random": Configuration("random", GRADUAL | {"seed": 4, "exclude": ["4.*"]}),
    "relative-magnitude": Configuration("relative-magnitude", GRADUAL),
    "magnitude-uncertainty": Configuration("magnitude-uncertainty", GRADUAL | {"horizon": 8}, optimizer=adam),
    "lamp": Configuration("lamp", GRADUAL),
    "fisher": Configuration("fisher", GRADUAL | {"noise": 0.3, "horizon": 8}),
    # other ways to prune
    "rigl": Configuration("rigl", IN_STEPS | {"updates": 5}),
    "rigl-global": Configuration("rigl", IN_STEPS | {"updates": 5, "distribution": "global"}, optimizer=adam),
    "granet": Configuration("granet", GRADUAL),
    "deep-r": Configuration("deep-r", IN_STEPS | {"l1": 1e-2, "temperature": 1e-3}, every=3),
    "snip": Configuration(
        "snip",
        IN_STEPS | {"rounds": 2, "batches": [vectors(1), vectors(2)], "loss_fn": nn.functional.cross_entropy},
        every=5,
    ),
    "lottery": Configuration("lottery", IN_STEPS | {"rounds": 4, "rewind_to": 2}, every=6),
    "hoyer-square": Configuration("hoyer-square", IN_STEPS | {"lambda_": 1e-2}, every=5),
    "hoyer-square-threshold": Configuration(
        "hoyer-square", {"steps": 20, "lambda_": 1e-2, "threshold": 0.05}, optimizer=adam, every=5
    ),
    # latents beside the weights
    "variational-dropout": Configuration(
        "variational-dropout", GRADUAL | {"lambda_": 1e-3, "latent_lr": 0.1}, loss=call_and_pull, every=5
    ),
    "variational-dropout-penalty": Configuration(
        "variational-dropout",
        {"steps": 20, "lambda_": 1e-2, "latent_lr": 0.5, "fine_tune": 0.25},
        loss=call_and_pull,
        optimizer=adam,
        every=4,
    ),
    "l0": Configuration("l0", GRADUAL | {"lambda_": 1e-2, "latent_lr": 0.1}, loss=call_and_pull, accumulated=2),
    "l0-units": Configuration(
        "l0",
        {"steps": 20, "lambda_": 1e-2, "latent_lr": 0.5, "gates": "unit"},
        loss=call_and_pull,
        optimizer=adam,
        every=4,
    ),
    "dynamic-sparse-training": Configuration(
        "dynamic-sparse-training", {"steps": 20, "lambda_": 1e-2, "latent_lr": 0.1}, every=4
    ),
    "obs": Configuration("obs", GRADUAL | {"block": 10, "gradients": 6}),
    "keep-zeros": Configuration("keep-zeros", {"steps": 20, "noise": 0.5}, with_zeros, every=5),
    # units
    "kernels": Configuration("flipout", UNITS | second_chances() | {"granularity": "kernel"}, residual),
    "blocks": Configuration("flipout-paper", UNITS | {"granularity": (4, 1), "reduce": "sum"}),
    "blocks-compiled": Configuration("flipout", UNITS | second_chances() | {"granularity": (4, 1)} | COMPILED),
    "pattern": Configuration(
        "flipout", geometric(0.5, 18, prunings=3, start=0.05, end=0.4) | second_chances() | {"granularity": "2:4"}
    ),
    "channels": Configuration(
        "magnitude", UNITS | {"granularity": "channel", "reduce": "norm"}, residual, pull_and_call
    ),
    "channels-second-chances": Configuration(
        "flipout",
        geometric(0.6, 18, prunings=3, start=0.05, end=0.3)
        | second_chances(until=1.0, share=0.5, rate=1.0, trust=5.0)
        | {"granularity": "channel"},
        residual,
        pull_and_call,
    ),
    "dead-first": Configuration("magnitude", GRADUAL | {"dead_first": True}, residual, pull_and_call),
    # shrinking
    "shrunk": Configuration("magnitude", EARLY, residual, classify_images, shrunk_after=frozenset({6, 9}), every=6),
    "shrunk-noise": Configuration(
        "flipout-paper", EXTREME, residual, classify_images, adam, shrunk_after=frozenset({5, 8}), every=6
    ),
    "shrunk-after-second-chances": Configuration(
        "flipout", EARLY | second_chances(until=0.4), residual, classify_images, shrunk_after=frozenset({8}), every=6
    ),
    # shards
    "shards": Configuration("flipout", GRADUAL | second_chances() | {"floor": 2}, sharded),
    "shards-noise": Configuration("flipout-paper", GRADUAL, sharded),
}
