"""Attention and feed-forward blocks of transformers, recognized by their structure.

Hugging Face's models cannot be traced, but their blocks are built alike: linear layers that write features, and one
that reads them. Between the two, each head and each feed-forward feature goes its own way. So a head can be removed
with the rows that write it and the columns that read it. The width of the residual stream stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

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


def linear_sizes(module: nn.Module | None) -> tuple[int, int] | None:
    """The inputs and outputs of a plain linear layer or Conv1D; None for anything else, such as one with an adapter."""
    if type(module) is nn.Linear or type(module) is nn.modules.linear.NonDynamicallyQuantizableLinear:
        return module.in_features, module.out_features
    if module is not None and is_transposed(module):
        inputs, outputs = module.weight.shape  # type: ignore[misc]
        return int(inputs), int(outputs)
    return None


def feature_sets(model: nn.Module) -> list[FeatureSet]:
    """The heads and feed-forward features of the blocks of a transformer that are built in a known way."""
    network = unwrapped(model)
    modules = dict(network.named_modules())
    found = []
    for name, module in modules.items():
        if type(module).__module__.split(".")[0] == "transformers" or isinstance(
            module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer
        ):
            found += [
                each for each in (_attention(name, module, modules), _feed_forward(name, module, modules)) if each
            ]
    return found


def _feed_forward(name: str, module: nn.Module, modules: dict[str, nn.Module]) -> FeatureSet | None:
    for writers, reader in FEED_FORWARD:
        sizes = [linear_sizes(modules.get(_join(name, each))) for each in (*writers, reader)]
        if any(size is None for size in sizes):
            continue
        width = sizes[-1][0]  # type: ignore[index]
        if any(size[1] != width for size in sizes[:-1] if size) or _has_norm_between(name, reader, module):
            continue
        features = torch.arange(width)[:, None]
        return FeatureSet(
            name, "features", {_join(name, each): features for each in writers}, {_join(name, reader): features}
        )
    return None


def _has_norm_between(name: str, reader: str, module: nn.Module) -> bool:
    """Whether a norm lies among the layers of a feed-forward block, where it would mix the features."""
    if "." in reader or isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
        return False  # their norms are those of the residual stream
    return any("norm" in type(child).__name__.lower() for child in module.children())


def _attention(name: str, module: nn.Module, modules: dict[str, nn.Module]) -> FeatureSet | None:
    size = next((getattr(module, each) for each in HEAD_SIZES if isinstance(getattr(module, each, None), int)), None)
    if not size:
        return None
    for names in QUERY_KEY_VALUE:
        if all(linear_sizes(modules.get(_join(name, each))) for each in names):
            return _separate_attention(name, names, size, modules)
    return _fused_attention(name, size, modules)


def _separate_attention(
    name: str, names: tuple[str, str, str], size: int, modules: dict[str, nn.Module]
) -> FeatureSet | None:
    """Query, key and value with a layer each. Several query heads may share the keys and values of a group."""
    writers = [_join(name, each) for each in names]
    query, key, value = (_outputs(modules[each]) for each in writers)
    reader = next((each for each in _readers(name) if _inputs(modules.get(each)) == query), None)
    if reader is None or key != value or key % size or query % key:
        return None
    groups = key // size
    heads, shared = torch.arange(query).view(groups, -1), torch.arange(key).view(groups, -1)
    return FeatureSet(name, "heads", dict(zip(writers, (heads, shared, shared), strict=True)), {reader: heads})


def _fused_attention(name: str, size: int, modules: dict[str, nn.Module]) -> FeatureSet | None:
    """One layer that writes query, key and value, one after the other, as in GPT-2."""
    writer, reader = (_join(name, each) for each in FUSED)
    width = _inputs(modules.get(reader))
    if not width or width % size or linear_sizes(modules.get(writer)) is None:
        return None
    if _outputs(modules[writer]) != 3 * width or not hasattr(modules[name], "split_size"):
        return None
    heads = torch.arange(width).view(-1, size)
    return FeatureSet(
        name, "heads", {writer: torch.cat([heads, heads + width, heads + 2 * width], dim=1)}, {reader: heads}
    )


def _readers(name: str) -> Iterator[str]:
    """Where the layer may be that reads the heads: in the attention itself, or beside it."""
    yield from (_join(name, each) for each in READERS)
    yield _join(name.rpartition(".")[0], "output.dense")


def _join(name: str, part: str) -> str:
    return f"{name}.{part}" if name else part


def _inputs(module: nn.Module | None) -> int | None:
    sizes = linear_sizes(module)
    return None if sizes is None else sizes[0]


def _outputs(module: nn.Module) -> int:
    sizes = linear_sizes(module)
    assert sizes is not None
    return sizes[1]
