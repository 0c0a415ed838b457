"""Which weights of a model are pruned, under which names, and what is kept beside each."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.optim.swa_utils import AveragedModel

from .statistics import Statistic

Predicate = Callable[[str, nn.Module, nn.Parameter], bool]
Patterns = str | Iterable[str] | Predicate
"""`"classifier.*"`, a list of such patterns, or a function `(name, module, parameter) -> bool`."""


@dataclass(eq=False)
class Layer:
    """A weight tensor that is pruned: its name, the module that holds it, its mask, and what is tracked of it."""

    name: str
    module: nn.Module
    weight: nn.Parameter
    number: int = 0
    trackers: dict[str, Statistic] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mask = torch.ones_like(self.weight, dtype=torch.bool, requires_grad=False)
        self.kept = self.mask.numel()

    def count(self) -> int:
        """Counts anew what the mask keeps."""
        self.kept = int(self.mask.sum())
        return self.kept

    def zero(self) -> None:
        """Zeroes the weights that the mask does not keep."""
        self.weight.masked_fill_(~self.mask, 0)


def find_layers(
    model: nn.Module, optimizer: torch.optim.Optimizer, include: Patterns | None, exclude: Patterns | None
) -> list[Layer]:
    """The weights to prune, each once however often it is tied, in the order of `model.named_parameters()`.

    By default the `weight` of every Linear and convolution that trains. `include` takes other ones instead: the
    matrices and kernels it matches, and vectors (biases, norms) only if it matches nothing else. `exclude` takes away.
    """
    every = list(_candidates(model))
    wanted = [c for c in every if c.usual] if include is None else _included(every, include)
    unwanted = {c.name for c in _matching(every, exclude or (), "exclude")}
    chosen = [c for c in wanted if c.name not in unwanted]
    trained = [c for c in chosen if c.weight.requires_grad]
    if not sum(c.weight.numel() for c in trained):
        frozen = f" ({len(chosen)} matched, but are frozen or of size zero)" if chosen else ""
        raise ValueError(
            f"there is nothing to prune in {type(_unwrapped(model)).__name__}{frozen}: by default the weights of "
            "Linear and convolution modules that train are pruned; say which others with include="
        )
    _check(trained, optimizer)
    return [Layer(c.name, c.module, c.weight, number) for number, c in enumerate(trained)]


def named_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers, without the names that `torch.compile` and data parallelism put before them."""
    inner = _unwrapped(model)
    tensors = [*inner.named_parameters(), *inner.named_buffers()]
    return {name.replace("_orig_mod.", ""): tensor for name, tensor in tensors}


class _Candidate(NamedTuple):
    name: str
    module: nn.Module
    weight: nn.Parameter
    usual: bool


def _candidates(model: nn.Module) -> Iterator[_Candidate]:
    """Every parameter once, and whether it is pruned by default: only if all modules that hold it are of that kind."""
    owners: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for attribute, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            owners.setdefault(parameter, []).append((module, attribute))
    for name, parameter in _unwrapped(model).named_parameters():
        held = owners[parameter]
        usual = all(attribute == "weight" and isinstance(module, (nn.Linear, _ConvNd)) for module, attribute in held)
        yield _Candidate(name.replace("_orig_mod.", ""), held[0][0], parameter, usual)


def _unwrapped(model: nn.Module) -> nn.Module:
    """The user's own module under what `torch.compile`, data parallelism and weight averaging wrap around it."""
    while True:
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel, AveragedModel)):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def _included(every: list[_Candidate], include: Patterns) -> list[_Candidate]:
    matched = _matching(every, include, "include")
    return [c for c in matched if c.weight.ndim > 1] or matched


def _matching(every: list[_Candidate], patterns: Patterns, argument: str) -> list[_Candidate]:
    if callable(patterns):
        return [c for c in every if patterns(c.name, c.module, c.weight)]
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    for pattern in patterns:
        if not any(_matches(c.name, pattern) for c in every):
            names = [c.name for c in every]
            near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.3) or names[:3]
            raise ValueError(f"{argument}={pattern!r} matches no parameter; near it are {', '.join(near)}")
    return [c for c in every if any(_matches(c.name, pattern) for pattern in patterns)]


def _matches(name: str, pattern: str) -> bool:
    """A pattern names a parameter, or a module that holds it at any depth."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[: i + 1]), pattern) for i in range(len(parts)))


def _check(trained: list[_Candidate], optimizer: torch.optim.Optimizer) -> None:
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if foreign := [c.name for c in trained if id(c.weight) not in held]:
        raise ValueError(
            f"the optimizer does not hold {', '.join(foreign)}: give it these weights, or leave them out with exclude="
        )
    if odd := [c.name for c in trained if not c.weight.is_floating_point()]:
        raise ValueError(f"only real floating-point weights can be pruned; leave out {', '.join(odd)} with exclude=")
