"""Compaction of transformers: heads and feed-forward features that nothing reads are removed from their blocks.

Hugging Face's models cannot be traced, so their blocks are recognized by their structure. A unit can go if the layer
that reads it has only zeros for it: whatever is written there has no effect. The modules stay what they are, with
smaller linear layers; LayerNorm and the width of the residual stream are not touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..graph.comparison import EquivalenceCheck
from ..graph.copies import UnsupportedNetworkError, independent_copy
from ..graph.transformer_blocks import FeatureSet, feature_sets
from ..modules import is_transposed

HEAD_COUNTS = ("num_attention_heads", "num_heads", "num_key_value_heads", "all_head_size", "split_size")
"""Attributes of an attention that say how many heads it has, or how wide all of them are together."""


@torch.no_grad()
def compact_transformer(original: nn.Module, example: tuple[Tensor, ...]) -> tuple[nn.Module, list[str]] | None:
    """Return a copy without unread heads and features, and notes; None if no block of the model is recognized."""
    if not feature_sets(original):
        return None
    compacted = independent_copy(original)
    notes = []
    for features in feature_sets(compacted):
        try:
            _remove_unread(compacted, features)
        except ValueError as error:
            notes.append(f"{features.name} is left unchanged: {error}")
    if left := _left_alone(compacted):
        notes.append(f"these are left unchanged, because none of their channels can be removed by itself: {left}")
    try:
        with _without_cache(original), _without_cache(compacted):
            EquivalenceCheck(original, example).verify(compacted)
    except UnsupportedNetworkError as error:
        return original, [f"nothing was removed: {error}"]
    return compacted, notes


@contextmanager
def _without_cache(model: nn.Module) -> Iterator[None]:
    """Let a model return no keys and values: those of removed heads would be missing in a comparison."""
    configs: dict[int, Any] = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    caching = [config for config in configs.values() if getattr(config, "use_cache", False) is True]
    for config in caching:
        config.use_cache = False
    try:
        yield
    finally:
        for config in caching:
            config.use_cache = True


def _remove_unread(model: nn.Module, features: FeatureSet) -> None:
    """Remove the units of a block that nothing reads; one unit stays, for a layer cannot have no input."""
    kept = torch.zeros(features.units, dtype=torch.bool)
    for name, places in features.readers.items():
        layer = model.get_submodule(name)
        read = layer.get_parameter("weight").detach().ne(0).any(1 if is_transposed(layer) else 0)
        kept |= read.cpu()[places].any(1)
    if kept.all():
        return
    if not kept.any():
        kept[0] = True
    block = model.get_submodule(features.name)
    for name, places in features.writers.items():
        _resize(model.get_submodule(name), 0, places[kept].flatten().sort().values)
    for name, places in features.readers.items():
        _resize(model.get_submodule(name), 1, places[kept].flatten().sort().values)
    for attribute in HEAD_COUNTS if features.kind == "heads" else ():
        if isinstance(number := getattr(block, attribute, None), int):
            setattr(block, attribute, number * int(kept.sum()) // features.units)


def _resize(layer: nn.Module, side: int, places: Tensor) -> None:
    """Keep some outputs (side 0) or inputs (side 1) of a linear layer or Conv1D."""
    weight, transposed = layer.get_parameter("weight"), is_transposed(layer)
    index = places.to(weight.device)
    smaller = weight.detach().index_select(1 - side if transposed else side, index).contiguous()
    layer.weight = nn.Parameter(smaller, weight.requires_grad)
    bias = layer._parameters.get("bias")
    if side == 0 and bias is not None:
        layer.bias = nn.Parameter(bias.detach()[index], bias.requires_grad)
    names = ("nf", "nx") if transposed else ("out_features", "in_features")
    if hasattr(layer, names[side]):
        setattr(layer, names[side], len(places))


def _left_alone(model: nn.Module) -> str:
    """The names of linear and convolution layers that belong to no block, shortened."""
    known = {name for features in feature_sets(model) for name in (*features.writers, *features.readers)}
    layers = (nn.Linear, nn.modules.conv._ConvNd)
    names = [n for n, m in model.named_modules() if (isinstance(m, layers) or is_transposed(m)) and n not in known]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
