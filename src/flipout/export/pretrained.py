"""Hugging Face models: a config that states the sizes of a compacted network, where a config can."""

from __future__ import annotations

import copy
import operator
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..channels.comparison import Example, as_arguments, describe_difference
from ..channels.record import without_cache
from ..modules import unwrapped

Shapes = Mapping[str, torch.Size]
TOLERANCE = 1e-4
OTHERS = re.compile(r"^_|token_id$|head_dim|head_size|^d_kv$")
"""Numbers of a config that do not change: no sizes, and the width of a head, because heads go as a whole."""


@torch.no_grad()
def fit_config(
    model: nn.Module, example_input: Example | Mapping[str, Tensor], *, slack: float = 0.1
) -> nn.Module | None:
    """Return a compacted Hugging Face model with a config that states its sizes; None if there is no such config.

    A config has one size for all layers. So smaller layers are padded with zeros to the size of the largest one, and
    the model may become larger by a share `slack` of its parameters. Layers have about the same size after pruning with
    `scope="layer"`. The result is a new model of the same class. `save_pretrained` and `from_pretrained` work with it
    as usual, without flipout. It is compared with the model on the example. If the result is None, use
    `save_compacted`.

        fitted = flipout.export.fit_config(small, inputs)
        if fitted is not None:
            fitted.save_pretrained("folder")

    Args:
        model: a model with a `config`, such as `compact` returns it; it is not changed.
        example_input: the inputs that the model is called with.
        slack: how much larger the result may be.
    """
    network: Any = unwrapped(model)
    if not hasattr(getattr(network, "config", None), "to_dict"):
        raise TypeError(f"{type(network).__name__} has no config of Hugging Face; use save_compacted")
    state = network.state_dict()
    config = _fitted(network, {name: tensor.shape for name, tensor in state.items()})
    if config is None:
        return None
    built = type(network)(config)
    size, largest = (sum(each.numel() for each in net.parameters()) for net in (built, network))
    if size > (1 + slack) * largest:
        return None
    built.load_state_dict({name: _filled(state[name], tensor) for name, tensor in built.state_dict().items()})
    args, kwargs = as_arguments(example_input)
    training = network.training
    with without_cache(network), without_cache(built):
        outputs = [each.eval()(*args, **kwargs) for each in (network, built)]
    network.train(training)
    built.train(training)
    return built if describe_difference(outputs[0], outputs[1], TOLERANCE) is None else None


def _filled(tensor: Tensor, like: Tensor) -> Tensor:
    """A tensor with zeros behind it, in the shape of another one."""
    filled = tensor.new_zeros(like.shape)
    filled[tuple(slice(size) for size in tensor.shape)] = tensor
    return filled


def _fitted(network: Any, wanted: Shapes) -> Any | None:
    """The config with which a new model is the smallest that has room for all tensors; None if none changes anything.

    The change that makes the model smallest is taken, again and again.
    """
    config, best = copy.deepcopy(network.config), None
    excess = _excess(_shapes(network, config), wanted)
    while excess:
        shapes, found = _shapes(network, config), None
        for name, value in _candidates(config, shapes or {}, wanted):
            tried = copy.deepcopy(config)
            _set(tried, name, value)
            more = _excess(_shapes(network, tried), wanted)
            if more is not None and more < excess:
                found, excess = tried, more
        if found is None:
            break
        config = best = found
    return best if excess is not None else None


def _shapes(network: Any, config: Any) -> Shapes | None:
    """The shapes of a new model with a config; None if there is no such model."""
    try:
        with torch.device("meta"):
            return {name: tensor.shape for name, tensor in type(network)(copy.deepcopy(config)).state_dict().items()}
    except Exception:  # a config may refuse a number in any way
        return None


def _excess(shapes: Shapes | None, wanted: Shapes) -> int | None:
    """By how many elements tensors are larger than they have to be; None if they have no room."""
    if shapes is None or shapes.keys() != wanted.keys():
        return None
    pairs = [(shapes[name], wanted[name]) for name in wanted]
    if any(len(one) != len(other) or any(map(operator.lt, one, other)) for one, other in pairs):
        return None
    return sum(one.numel() - other.numel() for one, other in pairs)


def _candidates(config: Any, shapes: Shapes, wanted: Shapes) -> Iterator[tuple[str, int]]:
    """Numbers of a config, by name, that change as sizes do."""
    changes = {
        (old, new)
        for name, shape in wanted.items()
        if name in shapes
        for old, new in zip(shapes[name], shape, strict=False)
        if old != new
    }
    for name, value in _integers(config):
        fitting = {value * new // old for old, new in changes if value * new % old == 0}
        yield from ((name, number) for number in sorted(fitting - {0, value}))


def _integers(config: Any, prefix: str = "") -> Iterator[tuple[str, int]]:
    """The numbers of a config and of those within it: their names, with dots, and values."""
    for name, value in vars(config).items():
        if type(value) is int and value > 1 and not OTHERS.search(name):
            yield f"{prefix}{name}", value
        elif hasattr(value, "to_dict"):
            yield from _integers(value, f"{prefix}{name}.")


def _set(config: Any, name: str, value: int) -> None:
    *outer, last = name.split(".")
    for each in outer:
        config = getattr(config, each)
    setattr(config, last, value)
