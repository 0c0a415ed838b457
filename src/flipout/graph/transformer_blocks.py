"""Attention and feed-forward blocks of transformers, recognized by their structure.

Hugging Face's models cannot be traced, but their blocks are built alike: linear layers that write features, and one
that reads them. Between the two, each head and each feed-forward feature goes its own way. So a head can be removed
with the rows that write it and the columns that read it. The width of the residual stream stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..modules import is_transposed, unwrapped

QUERY_KEY_VALUE = (("query", "key", "value"), ("q_proj", "k_proj", "v_proj"), ("q_lin", "k_lin", "v_lin"))
FUSED = ("c_attn", "c_proj")
READERS = ("o_proj", "out_proj", "out_lin", "dense")
FEED_FORWARD = (
    (("gate_proj", "up_proj"), "down_proj"),
    (("c_fc",), "c_proj"),
    (("fc1",), "fc2"),
    (("lin1",), "lin2"),
    (("linear1",), "linear2"),
    (("intermediate.dense",), "output.dense"),
)
"""The layers that write the features of a feed-forward block, and the one that reads them."""
HEAD_SIZES = ("head_dim", "attention_head_size")
TORCH_BLOCKS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


class _Size(NamedTuple):
    """The inputs and outputs of a linear layer."""

    inputs: int
    outputs: int


@dataclass(frozen=True)
class FeatureSet:
    """The heads of an attention, or the features of a feed-forward block.

    Args:
        name: the name of the block.
        kind: what the units are.
        writers: for each layer that writes them, its outputs that belong to each unit: (units, outputs of a unit).
        readers: for each layer that reads them, its inputs that belong to each unit.
    """

    name: str
    kind: Literal["heads", "features"]
    writers: dict[str, Tensor]
    readers: dict[str, Tensor]

    @property
    def units(self) -> int:
        return len(next(iter(self.readers.values())))


def feature_sets(model: nn.Module) -> list[FeatureSet]:
    """The heads and feed-forward features of the blocks of a transformer that are built in a known way."""
    network = unwrapped(model)
    sizes = {name: size for name, module in network.named_modules() if (size := _linear_size(module))}
    found: list[FeatureSet | None] = []
    for name, module in network.named_modules():
        if type(module).__module__.split(".")[0] == "transformers" or isinstance(module, TORCH_BLOCKS):
            found += [_attention(name, module, sizes), _feed_forward(name, module, sizes)]
    return [each for each in found if each is not None]


def _linear_size(module: nn.Module) -> _Size | None:
    """The size of a plain linear layer or Conv1D; None for anything else, such as one with an adapter."""
    if type(module) is nn.Linear or type(module) is nn.modules.linear.NonDynamicallyQuantizableLinear:
        return _Size(module.in_features, module.out_features)
    return _Size(*module.get_parameter("weight").shape) if is_transposed(module) else None


def _feed_forward(name: str, module: nn.Module, sizes: Mapping[str, _Size]) -> FeatureSet | None:
    for parts, last in FEED_FORWARD:
        writers, reader = [_join(name, part) for part in parts], _join(name, last)
        if not sizes.keys() >= {*writers, reader} or _has_norm_between(last, module):
            continue
        width = sizes[reader].inputs
        if all(sizes[writer].outputs == width for writer in writers):
            features = torch.arange(width)[:, None]
            return FeatureSet(name, "features", dict.fromkeys(writers, features), {reader: features})
    return None


def _has_norm_between(reader: str, module: nn.Module) -> bool:
    """Whether a norm lies among the layers of a feed-forward block, where it would mix the features."""
    if "." in reader or isinstance(module, TORCH_BLOCKS):
        return False  # their norms are those of the residual stream
    return any("norm" in type(child).__name__.lower() for child in module.children())


def _attention(name: str, module: nn.Module, sizes: Mapping[str, _Size]) -> FeatureSet | None:
    head = next((getattr(module, each) for each in HEAD_SIZES if isinstance(getattr(module, each, None), int)), None)
    if not head:
        return None
    for names in QUERY_KEY_VALUE:
        if sizes.keys() >= {_join(name, each) for each in names}:
            return _separate_attention(name, [_join(name, each) for each in names], head, sizes)
    return _fused_attention(name, head, sizes) if hasattr(module, "split_size") else None


def _separate_attention(name: str, writers: list[str], head: int, sizes: Mapping[str, _Size]) -> FeatureSet | None:
    """Query, key and value with a layer each. Several query heads may share the keys and values of a group."""
    query, key, value = (sizes[each].outputs for each in writers)
    # The layer that reads the heads is in the attention itself, or beside it.
    readers = [*(_join(name, each) for each in READERS), _join(name.rpartition(".")[0], "output.dense")]
    reader = next((each for each in readers if each in sizes and sizes[each].inputs == query), None)
    if reader is None or key != value or key % head or query % key:
        return None
    groups = key // head
    heads, shared = torch.arange(query).view(groups, -1), torch.arange(key).view(groups, -1)
    return FeatureSet(name, "heads", dict(zip(writers, (heads, shared, shared), strict=True)), {reader: heads})


def _fused_attention(name: str, head: int, sizes: Mapping[str, _Size]) -> FeatureSet | None:
    """One layer that writes query, key and value, one after the other, as in GPT-2."""
    writer, reader = (_join(name, each) for each in FUSED)
    if not sizes.keys() >= {writer, reader}:
        return None
    width = sizes[reader].inputs
    if width % head or sizes[writer].outputs != 3 * width:
        return None
    heads = torch.arange(width).view(-1, head)
    return FeatureSet(name, "heads", {writer: torch.cat([heads, heads + width, heads + 2 * width], 1)}, {reader: heads})


def _join(name: str, part: str) -> str:
    return f"{name}.{part}" if name else part
