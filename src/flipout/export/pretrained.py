"""Hugging Face models: a config that states the sizes of a compacted network, where a config can."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..channels.record import without_cache
from ..graph.comparison import Example, as_arguments, describe_difference
from ..modules import unwrapped

Shapes = Mapping[str, torch.Size]
TOLERANCE = 1e-4


@torch.no_grad()
def fit_config(model: nn.Module, example_input: Example | Mapping[str, Tensor]) -> bool:
    """Let the config of a compacted Hugging Face model state its sizes; return whether it can.

    A config has one number for all layers, so it can if every layer has lost as much: prune with `scope="layer"`. Then
    `save_pretrained` and `from_pretrained` work as usual, without flipout. If it cannot, the config is left as it is:
    use `save_compacted`. A model with the new config is built, filled and compared on the example.

        if flipout.export.fit_config(small, inputs):
            small.save_pretrained("folder")

    Args:
        model: a model with a `config`, such as `compact` returns it.
        example_input: the inputs that the model is called with.
    """
    network: Any = unwrapped(model)
    if not hasattr(getattr(network, "config", None), "to_dict"):
        raise TypeError(f"{type(network).__name__} has no config of Hugging Face; use save_compacted")
    fitted = _fitted(network)
    if fitted is None:
        return False
    built = type(network)(fitted)
    built.load_state_dict(network.state_dict())
    args, kwargs = as_arguments(example_input)
    with without_cache(network), without_cache(built):
        was_training = network.training
        outputs = [each.eval()(*args, **kwargs) for each in (network, built)]
        network.train(was_training)
    if describe_difference(outputs[0], outputs[1], TOLERANCE) is not None:
        return False
    for config, name, value in _numbers(fitted, network.config):
        setattr(config, name, value)
    return True


def _fitted(network: Any) -> Any | None:
    """A config with which a new model has the shapes of a network; None if none is found.

    The change that makes the most shapes right is taken, again and again.
    """
    wanted = {name: tensor.shape for name, tensor in network.state_dict().items()}
    config = copy.deepcopy(network.config)
    shapes = _shapes(network, config)
    while shapes is not None and (wrong := _wrong(shapes, wanted)):
        best, best_wrong = None, wrong
        for name, value in _candidates(config, shapes, wanted):
            tried = copy.deepcopy(config)
            _set(tried, name, value)
            found = _shapes(network, tried)
            if found is not None and _wrong(found, wanted) < best_wrong:
                best, best_wrong, best_shapes = tried, _wrong(found, wanted), found
        if best is None:
            return None
        config, shapes = best, best_shapes
    return None if shapes is None else config


def _shapes(network: Any, config: Any) -> Shapes | None:
    """The shapes of a new model with a config; None if there is no such model."""
    try:
        with torch.device("meta"):
            return {name: tensor.shape for name, tensor in type(network)(copy.deepcopy(config)).state_dict().items()}
    except Exception:  # a config may refuse a number in any way
        return None


def _wrong(shapes: Shapes, wanted: Shapes) -> int:
    return sum(shapes.get(name) != shape for name, shape in wanted.items()) + len(shapes.keys() - wanted.keys())


def _candidates(config: Any, shapes: Shapes, wanted: Shapes) -> Iterator[tuple[str, int]]:
    """Numbers of a config, by name, that change as sizes do. Numbers of heads come first: their width stays."""
    changes = {
        (old, new)
        for name, shape in wanted.items()
        if name in shapes
        for old, new in zip(shapes[name], shape, strict=False)
        if old != new
    }
    stated = sorted(_integers(config), key=lambda each: "heads" not in each[0])
    for name, value in stated:
        fitting = {value * new // old for old, new in changes if value * new % old == 0}
        yield from ((name, number) for number in sorted(fitting - {0, value}))


def _integers(config: Any, prefix: str = "") -> Iterator[tuple[str, int]]:
    """The numbers of a config and of those within it: their names, with dots, and values."""
    for name, value in vars(config).items():
        if type(value) is int and value > 1 and not name.startswith("_") and not name.endswith("token_id"):
            yield f"{prefix}{name}", value
        elif hasattr(value, "to_dict"):
            yield from _integers(value, f"{prefix}{name}.")


def _set(config: Any, name: str, value: int) -> None:
    *outer, last = name.split(".")
    for each in outer:
        config = getattr(config, each)
    setattr(config, last, value)


def _numbers(fitted: Any, config: Any) -> Iterator[tuple[Any, str, int]]:
    """What differs from a config: the config or one within it, the name, and the number."""
    for name, value in list(vars(fitted).items()):
        own = vars(config).get(name)
        if type(value) is int and value != own:
            yield config, name, value
        elif hasattr(value, "to_dict") and hasattr(own, "to_dict"):
            yield from _numbers(value, own)
