"""Live paths: which weights lie on a path from the input of a network to its output.

`count_effective` counts those of a network as it is. `LivePaths` finds the dead ones under masks. It records the
network once. After that, masks are reduced to which output channel reads which input channel, and two passes over the
recorded operations mark what depends on the input and what the output depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.parametrize import ParametrizationList

from ..modules import plain_name, unwrapped
from .comparison import Arguments, tensors_of
from .copies import UnsupportedNetworkError
from .flow import Flow, connections
from .record import Recording, record
from .values import Values


@dataclass(frozen=True)
class EffectiveWeights:
    """Counts of the weights that can be pruned: all of them, those that are not zero, and the effective ones.

    The weights of Linear and convolution modules count, and the matrices of every other class of modules in which one
    has exact zeros, such as an `LSTM` that was pruned with `include=`.

    A nonzero weight is effective if its input channel depends on the input of the network, and the output of the
    network depends on its output channel.

    Args:
        prunable: all weights, zeros included.
        nonzero: the weights that are not zero.
        effective: the nonzero weights on a live path.
        layers: (nonzero, effective) for each weight tensor, by name.
        notes: what could not be analysed. There every nonzero weight counts as effective.
    """

    prunable: int
    nonzero: int
    effective: int
    layers: dict[str, tuple[int, int]]
    notes: tuple[str, ...] = ()

    @property
    def nominal_sparsity(self) -> float:
        """The share of weights that are zero."""
        return 1 - self.nonzero / self.prunable if self.prunable else 0.0

    @property
    def effective_sparsity(self) -> float:
        """The share of weights that are zero or on no live path."""
        return 1 - self.effective / self.prunable if self.prunable else 0.0


@torch.no_grad()
def count_effective(
    network: nn.Module, arguments: Arguments, weights: Mapping[tuple[str, ...], Tensor]
) -> EffectiveWeights:
    """Count the weights on a live path. The network may be a copy of the one that the weights belong to."""
    live, used, notes = dict[str, Tensor](), None, tuple[str, ...]()
    try:
        recording = _recorded(network, *arguments)
        used = _used(recording)
        found = {name: tensor for names, tensor in weights.items() for name in names if name in used}
        masks = {name: (tensor != 0).cpu() for name, tensor in found.items() if tensor.ndim > 1}
        live = Flow(masks, Values(recording, unwrapped(network))).live(recording)
    except UnsupportedNetworkError as error:
        notes = (str(error),)
    layers: dict[str, tuple[int, int]] = {}
    for names, tensor in weights.items():
        nonzero = int(tensor.count_nonzero())
        paths = next((live[name] for name in names if name in live), None)
        unknown = nonzero if used is None or any(_is_used(name, used) for name in names) else 0
        layers[names[0]] = nonzero, unknown if paths is None else int(((tensor != 0).cpu() & paths).sum())
    prunable = sum(tensor.numel() for tensor in weights.values())
    nonzero, effective = (sum(pair[k] for pair in layers.values()) for k in (0, 1))
    return EffectiveWeights(prunable, nonzero, effective, layers, notes)


def _recorded(network: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Recording:
    """Record a network. The random numbers of a running training are not changed."""
    with torch.random.fork_rng(devices={each.device for each in tensors_of((args, kwargs)) if each.is_cuda}):
        return record(network, args, kwargs, functional=True)


def _used(recording: Recording) -> set[str]:
    """The names of the parameters and buffers that a network reads."""
    return {plain_name(name) for node, name in recording.tensors.items() if node.users}


def _is_used(name: str, used: set[str]) -> bool:
    """Whether a network reads a weight, or what a parametrized weight is computed from."""
    sources = f"{name.rpartition('.')[0]}.parametrizations.".lstrip(".")
    return name in used or any(each.startswith(sources) for each in used)


@torch.no_grad()
def prunable_weights(
    model: nn.Module, is_pruned: Callable[[Tensor], bool] = lambda _: False
) -> dict[tuple[str, ...], Tensor]:
    """The weights of a network that count as prunable, in the order of `named_parameters()`, by all of their names.

    These are the weights of Linear and convolution modules, unless they are tied to a parameter of another module; the
    weights for which `is_pruned` is true; and all matrices of each other class of modules, such as `LSTM` or
    `Embedding`, if one of them has exact zeros. All-zero tensors and padding rows of embeddings do not count as pruned.
    """
    uses: dict[int, list[_Use]] = {}
    for prefix, module in unwrapped(model).named_modules(remove_duplicate=False):
        own = {name: tensor for name, tensor in module._parameters.items() if tensor is not None}
        if isinstance(module, nn.Linear | _ConvNd) and "weight" not in own:  # parametrized, or not a parameter
            own["weight"] = module.weight
        for name, tensor in own.items():
            uses.setdefault(id(tensor), []).append(_Use(f"{prefix}.{name}".lstrip("."), module, tensor))
    pruned_classes = {type(use.module) for tied in uses.values() for use in tied if _looks_pruned(use)}
    return {
        tuple(plain_name(use.name) for use in tied): tied[0].tensor
        for tied in uses.values()
        if _belongs_to_layers(tied)
        or is_pruned(tied[0].tensor)
        or any(use.tensor.ndim > 1 and type(use.module) in pruned_classes for use in tied)
    }


@dataclass(frozen=True)
class _Use:
    """A tensor in a module. A tied tensor has several."""

    name: str
    module: nn.Module
    tensor: Tensor


def _belongs_to_layers(tied: list[_Use]) -> bool:
    """Whether a tensor is the weight of Linear and convolution modules, and nothing else."""
    uses = [use for use in tied if not isinstance(use.module, ParametrizationList)]
    names = {use.name.rpartition(".")[2] for use in uses}
    return names == {"weight"} and all(isinstance(use.module, nn.Linear | _ConvNd) for use in uses)


def _looks_pruned(use: _Use) -> bool:
    """Whether a matrix of a module that is not Linear or a convolution has some exact zeros, but not only."""
    # A parametrization has the tensors that a layer's weight is computed from, and that weight counts already.
    if isinstance(use.module, nn.Linear | _ConvNd | ParametrizationList) or use.tensor.ndim < 2:
        return False
    tensor = use.tensor
    if isinstance(use.module, nn.Embedding | nn.EmbeddingBag) and use.module.padding_idx is not None:
        tensor = torch.cat([tensor[: use.module.padding_idx], tensor[use.module.padding_idx + 1 :]])
    return 0 < int(tensor.count_nonzero()) < tensor.numel()


class LivePaths:
    """Finds the kept weights of a network that are on no live path from its input to its output.

    A kept weight is live if its input channel depends on the input of the network, and the output of the network
    depends on its output channel. Values do not matter: a kept weight, a norm or a bias counts, whatever it is. Where
    nothing is known all weights are live: behind operations that may mix channels, in layers that are not called, and
    for weights without a mask.

    Args:
        model: the network; it is not changed, and only what its graph looks like is kept.
        args: the positional arguments of a call, with any batch size.
        kwargs: its keyword arguments.
    """

    def __init__(self, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> None:
        self._recording = _recorded(model, args, kwargs)
        self._used = _used(self._recording)

    @torch.no_grad()
    def dead(self, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Mark the kept weights that are on no live path. Weights without such ones are left out of the result.

        Args:
            masks: for each weight, by its name, a boolean tensor of its shape: True where it is kept.
        """
        names = [name for name, mask in masks.items() if name in self._used and mask.ndim > 1]
        matrices = [connections(masks[name]) for name in names]
        on_cpu = dict(zip(names, _moved(matrices, [torch.device("cpu")] * len(names)), strict=True))
        live = Flow(on_cpu).live(self._recording)
        unused = {name: gone for name, matrix in on_cpu.items() if (gone := matrix & ~live[name]).any()}
        there = _moved(list(unused.values()), [masks[name].device for name in unused])
        return {name: masks[name] & matrix for name, matrix in zip(unused, there, strict=True)}


def _moved(tensors: Sequence[Tensor], devices: Sequence[torch.device]) -> list[Tensor]:
    """Each tensor on its device, with one transfer for each pair of devices."""
    moved, ways = list(tensors), [(tensor.device, device) for tensor, device in zip(tensors, devices, strict=True)]
    for way in {(here, there) for here, there in ways if here != there}:
        places = [place for place, each in enumerate(ways) if each == way]
        flat = torch.cat([tensors[place].flatten() for place in places]).to(way[1])
        for place, part in zip(places, torch.split(flat, [tensors[place].numel() for place in places]), strict=True):
            moved[place] = part.reshape(tensors[place].shape)
    return moved
