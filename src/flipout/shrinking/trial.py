"""A trial on copies: the smaller network must run, and compute the same, before the network itself is touched."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ..channels.comparison import Arguments, coarsest_epsilon, describe_difference, tensors_of
from ..channels.copies import UnsupportedNetworkError, evaluation_copy, first_line
from ..channels.resize import Attributes, resize
from ..channels.trial import ByPosition, Comparison
from ..views.cut import Indices
from .fixed_randomness import fixed_randomness


@torch.no_grad()
def try_cut(model: nn.Module, indices: Mapping[str, Indices], attributes: Attributes, arguments: Arguments) -> None:
    """Raise an `UnsupportedNetworkError` if the network would compute something else without some channels."""
    whole = evaluation_copy(model)
    comparison = Comparison(whole, *arguments)
    resize(whole, indices, attributes)
    comparison.verify(whole)
    _try_in_training_mode(model, indices, attributes, arguments, comparison.example)


def _try_in_training_mode(
    model: nn.Module,
    indices: Mapping[str, Indices],
    attributes: Attributes,
    arguments: Arguments,
    example: tuple[Tensor, ...],
) -> None:
    """Compare the outputs in training mode: a network may return features there, or call an auxiliary head.

    In float64, and with a large epsilon in batch norms: where a batch hardly varies, they would enlarge rounding, one
    after the other. What is random, such as dropout in the code of the network, has fixed results.
    """
    epsilons: dict[str, float] = {}
    whole, smaller = (ByPosition(_training_copy(model, epsilons), *arguments) for _ in range(2))
    resize(smaller.model, indices, attributes)
    try:
        expected, inputs = _outputs(whole.double(), _exact(example)), _exact(example)
        smaller.double()
    except Exception:  # the network may have types written into its code
        whole, inputs = ByPosition(_training_copy(model, epsilons), *arguments), example
        expected = _outputs_or_refuse(whole, inputs, "the network does not run in training mode with a few examples")
    found = _outputs_or_refuse(smaller, inputs, "the smaller network failed in training mode")
    tolerance = coarsest_epsilon(expected) ** 0.4
    if describe_difference(expected, _outputs(whole, inputs, seed=1), tolerance, global_share=1e-3):
        raise UnsupportedNetworkError(
            "its outputs in training mode are random, in a way that cannot be repeated with fewer channels"
        )
    if difference := describe_difference(expected, found, tolerance, global_share=1e-3):
        raise UnsupportedNetworkError(f"the smaller network has different outputs in training mode ({difference})")


def _training_copy(model: nn.Module, epsilons: dict[str, float]) -> nn.Module:
    """A copy in training mode, without dropout, and with batch norms that do not enlarge rounding.

    Modules that are in evaluation mode while the rest trains stay so. The norms of all copies share their epsilons.
    """
    modes = [module.training for module in model.modules()]
    network = evaluation_copy(model)
    for (path, module), training in zip(network.named_modules(), modes, strict=True):
        module.training = (training or not model.training) and not isinstance(module, _DropoutNd)
        if isinstance(module, _BatchNorm):
            module.register_forward_pre_hook(partial(_enlarge_epsilon, epsilons, path), with_kwargs=True)
    return network


def _enlarge_epsilon(
    epsilons: dict[str, float], path: str, norm: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Let the epsilon of a norm be the mean square of the first input that a norm of this name gets, in any copy.

    So rounding stays as small as it is relative to that input, and what differs does not fade behind many norms.
    """
    if path not in epsilons:
        epsilons[path] = max(norm.eps, float(tensors_of((args, kwargs))[0].double().square().mean()))
    norm.eps = epsilons[path]


def _exact(example: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(each.double() if each.is_floating_point() else each for each in example)


def _outputs(model: nn.Module, inputs: tuple[Tensor, ...], seed: int = 0) -> Any:
    with fixed_randomness(seed, inputs):
        return model(*copy.deepcopy(inputs))


def _outputs_or_refuse(model: nn.Module, inputs: tuple[Tensor, ...], problem: str) -> Any:
    try:
        return _outputs(model, inputs)
    except Exception as error:  # the user's code may raise any error
        raise UnsupportedNetworkError(f"{problem} ({first_line(error)})") from error
