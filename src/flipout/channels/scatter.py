"""Layers that lose channels before a sum: what they still compute is placed among constants.

A sum of two tensors needs the channels of both. A layer before it, with the batch norm behind it, can still lose those
that are constant, and those that nothing reads behind the sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.conv import _ConvTransposeNd

from ..modules import groups_of
from .constants import ConstantFlow
from .copies import has_hooks, independent_copy
from .graph import Indices
from .record import Recording, record
from .resize import replace_module, resize
from .rules import contractions, norms
from .rules.table import rule_of

LEAST_SHARE = 1 / 2
"""The share of its channels that a layer must lose. Placing those that are left takes time."""
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class ScatterChannels(nn.Module):
    """Places the channels of a tensor among constant ones.

    Args:
        dim: the dimension of the channels, counted from the last one.
        constants: the values of all channels; NaN for those of the tensor.
    """

    order: Tensor
    constants: Tensor

    def __init__(self, dim: int, constants: Tensor) -> None:
        super().__init__()
        self.dim, varies = dim, constants.isnan()
        self.register_buffer("constants", constants[~varies])
        self.register_buffer("order", torch.cat([varies.nonzero(), (~varies).nonzero()]).flatten().argsort())

    def forward(self, x: Tensor) -> Tensor:
        dims = range(-x.ndim, 0)
        shape = [-1 if dim == self.dim else 1 for dim in dims]
        sizes = [-1 if dim == self.dim else x.shape[dim] for dim in dims]
        return torch.cat([x, self.constants.view(shape).expand(sizes)], self.dim).index_select(self.dim, self.order)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, channels={len(self.order)}"


@torch.no_grad()
def with_scattered_channels(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> nn.Module | None:
    """A copy of a network of which no layer computes many channels that are constant or not read; None if none does.

    Such a layer, or the batch norm behind it, becomes `nn.Sequential(module, ScatterChannels)`.

    Args:
        model: the network, in evaluation mode; it is not changed.
        args: the positional arguments of a call.
        kwargs: its keyword arguments.
    """
    recording = record(model, args, kwargs, functional=True)
    flow, copy = ConstantFlow(model, recording), independent_copy(model)
    changed = [_scatter(copy, nodes, recording, flow.constants.get(nodes[-1])) for nodes in _chains(flow, recording)]
    return copy if any(changed) else None


def scattered_modules(model: nn.Module) -> dict[str, int]:
    """The names of all `nn.Sequential(module, ScatterChannels)`, with the dimension of the channels."""
    pairs = (
        (name, module)
        for name, module in model.named_modules(remove_duplicate=False)
        if len(list(module.children())) == 2
    )
    lasts = ((name, module[1]) for name, module in pairs if type(module) is nn.Sequential)
    return {name: last.dim for name, last in lasts if isinstance(last, ScatterChannels)}


def scatter_again(model: nn.Module, path: str, dim: int, order: Tensor, constants: Tensor) -> None:
    """Place the channels of a module among constants, as in the network that the order and the constants are of."""
    scatter = ScatterChannels(dim, constants.new_full(order.shape, torch.nan))
    scatter.order, scatter.constants = order, constants
    module = model.get_submodule(path)
    replace_module(model, module, nn.Sequential(module, scatter))


def _chains(flow: ConstantFlow, recording: Recording) -> Iterator[list[fx.Node]]:
    """Each layer, with the batch norm that alone reads it if there is one."""
    for node in flow.layers:
        behind = [user for user in node.users if rule_of(user) is norms.batch_norm]
        is_alone = len(node.users) == len(behind) == 1 and node.meta["val"].ndim > 1
        own = [each for norm in behind for each in norm.all_input_nodes if each in recording.tensors]
        fits = is_alone and own and all(len(each.users) == 1 for each in own)
        has_channels_first = rule_of(node) is contractions.convolution or node.meta["val"].ndim == 2
        yield [node, *behind] if fits and has_channels_first else [node]


def _scatter(model: nn.Module, nodes: list[fx.Node], recording: Recording, constants: Tensor | None) -> bool:
    """Let a layer, and the batch norm behind it, lose constant channels; return whether it has many."""
    paths = [recording.tensors[node.all_input_nodes[1]].rpartition(".")[0] for node in nodes]
    modules = [model.get_submodule(path) for path in paths]
    is_output = any(user.op == "output" for user in nodes[-1].users)
    if constants is None or is_output or not all(paths) or not all(map(_is_plain, modules)):
        return False
    if not bool(constants.isnan().any()):
        constants[0] = torch.nan  # a tensor cannot be without channels
    kept = constants.isnan().nonzero().flatten()
    if len(constants) - len(kept) < LEAST_SHARE * len(constants):
        return False
    resize(model, {name: rows for pair in zip(paths, modules, strict=True) for name, rows in _rows(*pair, kept)})
    kernel = nodes[0].all_input_nodes[1].meta["val"].ndim
    dim = -1 if isinstance(modules[0], nn.Linear) else 1 - kernel
    last = modules[-1]
    scattered = nn.Sequential(last, ScatterChannels(dim, constants.to(next(modules[0].parameters()))))
    replace_module(model, last, scattered)
    return True


def _is_plain(module: nn.Module) -> bool:
    return type(module) in (*LAYERS, *NORMS) and not has_hooks(module) and groups_of(module) == 1


def _rows(path: str, module: nn.Module, kept: Tensor) -> Iterator[tuple[str, Indices]]:
    """What is left of the tensors of a module with some of its outputs."""
    tensors = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    for name, tensor in tensors:
        rows = 1 if isinstance(module, _ConvTransposeNd) and tensor.ndim > 1 else 0
        if tensor.ndim:
            yield f"{path}.{name}", tuple(kept if dim == rows else None for dim in range(tensor.ndim))
