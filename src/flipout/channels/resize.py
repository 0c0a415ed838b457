"""Make the modules of a network smaller in place: their tensors, and the sizes that they state about themselves."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from ..modules import is_transposed
from .graph import ChannelGraph, Indices
from .labels import Labels, Value, dims_of, distinct
from .propagation import tensors_in
from .record import module_of

COUNTS = re.compile(r"heads$|^n_head$|^all_head_size$|^split_size$|^inner_dim$|_channels$|_features$")
"""The names of attributes that say how many heads or channels a module has, or how wide all heads are together."""

Sizes = Mapping[str, Mapping[int, int]]
"""For each module by name, what became of sizes: {before: after}."""


def is_count(name: str) -> bool:
    """Whether the name of an attribute says that it counts heads or channels."""
    return COUNTS.search(name) is not None


GUESSES: tuple[Callable[[str], bool], ...] = (is_count, lambda _: False, lambda _: True)
"""Which attributes may follow a size that changed in one place of a module and stayed in another, in order."""


@torch.no_grad()
def resize(
    model: nn.Module, remainder: Mapping[str, Indices], sizes: Sizes, follows: Callable[[str], bool] = is_count
) -> None:
    """Keep some indices of the tensors of a network.

    Args:
        model: the network, which is changed. Its modules stay the same objects.
        remainder: what is left of each parameter and buffer that loses something.
        sizes: the sizes that changed inside of each module; its attributes follow them.
        follows: whether an attribute of some name follows a size that changed in one place and stayed in another.
    """
    for path, changed in sizes.items():
        _restate(model.get_submodule(path), changed, follows)
    for name, indices in remainder.items():
        path, _, last = name.rpartition(".")
        _cut(model.get_submodule(path), last, indices)
    for path in dict.fromkeys(name.rpartition(".")[0] for name in remainder):
        _fit(model.get_submodule(path))


def _cut(module: nn.Module, name: str, indices: Indices) -> None:
    tensor = getattr(module, name)
    if isinstance(module, _ConvNd) and name == "weight" and module.groups > 1:
        outputs = tensor.shape[0] // module.groups  # or inputs, if it is transposed
        left = len(tensor) if indices[0] is None else len(indices[0])
        module.groups = left // outputs
    if isinstance(module, nn.GroupNorm) and indices[0] is not None and name == "weight":
        module.num_groups = len(indices[0]) * module.num_groups // module.num_channels
    values = tensor.detach()
    for dim, index in enumerate(indices):
        if index is not None:
            values = values.index_select(dim, index.to(values.device))
    tensor.grad = None
    tensor.data = values.contiguous()  # the same object: it may belong to several modules


def _fit(module: nn.Module) -> None:
    """Make the sizes of a module agree with its tensors."""
    weight = getattr(module, "weight", None)
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, _ConvTransposeNd):
        module.in_channels, module.out_channels = module.weight.shape[0], module.weight.shape[1] * module.groups
    elif isinstance(module, _ConvNd):
        module.out_channels, module.in_channels = module.weight.shape[0], module.weight.shape[1] * module.groups
    elif isinstance(module, nn.Embedding):
        module.num_embeddings, module.embedding_dim = module.weight.shape
    elif isinstance(module, _NormBase):
        size = next((each for each in (weight, module.running_mean) if each is not None), None)
        module.num_features = module.num_features if size is None else len(size)
    elif isinstance(module, nn.GroupNorm):
        module.num_channels = len(module.weight)
    elif isinstance(module, nn.PReLU):
        module.num_parameters = len(module.weight)
    elif is_transposed(module):
        for attribute, size in zip(("nx", "nf"), module.get_parameter("weight").shape, strict=True):
            setattr(module, attribute, size)


def _restate(module: nn.Module, changed: Mapping[int, int], follows: Callable[[str], bool]) -> None:
    """Change the numbers among the attributes of a module that are sizes of its tensors."""
    for name, number in list(vars(module).items()):
        if type(number) is int and number in changed and not name.startswith("_"):
            after = changed[number]
            if after > 0 or follows(name):
                setattr(module, name, abs(after))


def changed_sizes(graph: ChannelGraph, kept: Tensor) -> dict[str, dict[int, int]]:
    """The sizes that change inside of each module, for operations whose code may name them.

    A size that became several others is left out. One that also stays somewhere in the module is negative: the names
    of attributes decide which of them follow it.
    """
    changed: dict[str, dict[int, set[int]]] = {}
    stays: dict[str, set[int]] = {}
    for node, result in graph.propagation.values.items():
        if not _names_sizes(node):
            continue
        values = [*tensors_in(result), *tensors_in([graph.propagation.values[each] for each in node.all_input_nodes])]
        path = module_of(node)
        for value in values:
            for before, after in zip(value.shape, new_shape(graph, value, kept), strict=True):
                if before == after:
                    stays.setdefault(path, set()).add(before)
                else:
                    changed.setdefault(path, {}).setdefault(before, set()).add(after)
    return {
        path: {old: -min(new) if old in stays.get(path, ()) else min(new) for old, new in each.items() if len(new) == 1}
        for path, each in changed.items()
    }


NAMING = (
    "view",
    "reshape",
    "split",
    "expand",
    "unflatten",
    "slice",
    "repeat",
    "chunk",
    "group_norm",
    "zeros",
    "ones",
    "full",
    "empty",
)


def _names_sizes(node: fx.Node) -> bool:
    return node.op == "call_function" and any(name in str(node.target) for name in NAMING)


def new_shape(graph: ChannelGraph, value: Value, kept: Tensor) -> tuple[int, ...]:
    """The shape of a tensor with the sets that are kept."""
    shape = list(value.shape)
    for factor in value.factors:
        flags = kept[graph.sets[factor]]
        for dim in dims_of(factor):
            others = [each for each in range(flags.ndim) if each != dim]
            along = flags.amax(others) if others else flags
            if int(along.sum()) < value.shape[dim]:
                shape[dim] = int(along.sum())
    return tuple(shape)


def families(graph: ChannelGraph, chosen: Tensor) -> list[Tensor]:
    """Some sets by where they are: those that belong to one dimension of a tensor are together."""
    together = Labels()
    numbers = torch.cat([torch.zeros(1, dtype=torch.int64), together.new(graph.size - 1)])
    for dims in graph.tensors.values():
        for dim in dims:
            members = dim[chosen[dim]]
            together.tie(members, members[:1])
    roots = together.roots(numbers)
    return [(roots == each) & chosen for each in distinct(roots[chosen])]
