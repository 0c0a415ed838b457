"""Find the weights of a network that count as prunable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.parametrize import ParametrizationList

from ..modules import plain_name, unwrapped


@dataclass(frozen=True)
class PrunableWeight:
    """A weight tensor that counts as prunable.

    Args:
        names: its name, without the prefixes of `torch.compile`, and if it is tied, its other names. A pruner uses the
            first.
        tensor: the weight.
    """

    names: tuple[str, ...]
    tensor: Tensor


@torch.no_grad()
def prunable_weights(model: nn.Module, is_pruned: Callable[[Tensor], bool] = lambda _: False) -> list[PrunableWeight]:
    """Return the weights of a network that count as prunable, each once, in the order of `named_parameters()`.

    These are the weights of Linear and convolution modules, unless they are tied to a parameter of another module; the
    weights for which `is_pruned` is true; and all matrices of each other class of modules, such as `LSTM` or
    `Embedding`, if one of them has exact zeros. All-zero tensors and padding rows of embeddings do not count as pruned.
    """
    uses: dict[int, list[_Use]] = {}
    for use in _uses(unwrapped(model)):
        uses.setdefault(id(use.tensor), []).append(use)
    pruned_classes = {type(use.module) for each in uses.values() for use in each if _looks_pruned(use)}
    return [
        PrunableWeight(tuple(plain_name(use.name) for use in tied), tied[0].tensor)
        for tied in uses.values()
        if _belongs_to_layers(tied)
        or is_pruned(tied[0].tensor)
        or any(use.tensor.ndim > 1 and type(use.module) in pruned_classes for use in tied)
    ]


@dataclass(frozen=True)
class _Use:
    """A tensor in a module. A tied tensor has several."""

    name: str
    module: nn.Module
    tensor: Tensor


def _uses(network: nn.Module) -> Iterator[_Use]:
    for prefix, module in network.named_modules(remove_duplicate=False):
        own = {name: tensor for name, tensor in module._parameters.items() if tensor is not None}
        if isinstance(module, nn.Linear | _ConvNd) and "weight" not in own:  # parametrized, or not a parameter
            own["weight"] = module.weight
        for name, tensor in own.items():
            yield _Use(f"{prefix}.{name}".lstrip("."), module, tensor)


def _belongs_to_layers(tied: list[_Use]) -> bool:
    """Return whether a tensor is the weight of Linear and convolution modules, and nothing else."""
    uses = [use for use in tied if not isinstance(use.module, ParametrizationList)]
    names = {use.name.rpartition(".")[2] for use in uses}
    return names == {"weight"} and all(isinstance(use.module, nn.Linear | _ConvNd) for use in uses)


def _looks_pruned(use: _Use) -> bool:
    """Return whether a matrix of a module that is not Linear or a convolution has some exact zeros, but not only."""
    # A parametrization has the tensors that a layer's weight is computed from, and that weight counts already.
    if isinstance(use.module, nn.Linear | _ConvNd | ParametrizationList) or use.tensor.ndim < 2:
        return False
    tensor = use.tensor
    if isinstance(use.module, nn.Embedding | nn.EmbeddingBag) and use.module.padding_idx is not None:
        tensor = torch.cat([tensor[: use.module.padding_idx], tensor[use.module.padding_idx + 1 :]])
    return 0 < int(tensor.count_nonzero()) < tensor.numel()
