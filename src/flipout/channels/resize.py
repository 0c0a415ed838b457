"""Make the modules of a network smaller in place: their tensors, and the sizes that they state about themselves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from ..modules import is_transposed
from .graph import ChannelGraph, Indices
from .labels import Labels, Value, dims_of, distinct
from .narrow_norms import narrowed, tensor_shapes
from .propagation import tensors_in
from .record import module_of

COUNTS = re.compile(r"heads$|^n_head$|^all_head_size$|^split_size$|^inner_dim$|_channels$|_features$")
"""The names of attributes that say how many heads or channels a module has, or how wide all heads are together."""
NAMING = re.compile("view|reshape|split|expand|unflatten|slice|repeat|chunk|group_norm|zeros|ones|full|empty")
"""The names of operations whose code may name sizes."""

Sizes = Mapping[str, Mapping[int, int]]
"""For each module by name, what became of sizes: {before: after}."""
Attributes = Mapping[str, Mapping[str, Any]]
"""For each module by name, the attributes that change, with their values."""


Places = frozenset[tuple[str, str]]
"""Attributes that follow sizes of their modules: the name of the module, and that of the attribute."""

Guess = Callable[[str, bool], bool]
"""Whether an attribute follows a size of its module that changed, by its name, and whether the size changed everywhere
in the module."""


def guesses(model: nn.Module, sizes: Sizes, known: Places, *, single: bool) -> list[Places]:
    """What may follow sizes which change, in the order in which it is tried.

    Most code takes sizes from its tensors, and a number may mean something else.

    Args:
        model: the network.
        sizes: what becomes of the sizes.
        known: what follows other sizes; the same names are likely to follow these.
        single: whether attributes of one name are tried without the others, and the others without them.
    """
    names = {name for _, name in known}
    rules: tuple[Guess, ...] = (
        lambda name, sure: False,
        lambda name, sure: name in names,
        lambda name, sure: bool(COUNTS.search(name)),
        lambda name, sure: sure or bool(COUNTS.search(name)),
        lambda name, sure: True,
    )
    found = [_followers(model, sizes, rule) for rule in rules]
    every = found[-1]
    for one in sorted({name for _, name in every}) if single else ():
        alone = frozenset(place for place in every if place[1] == one)
        found += [alone, every - alone]
    return list(dict.fromkeys(found))


def _followers(model: nn.Module, sizes: Sizes, rule: Guess) -> Places:
    return frozenset(
        (path, name)
        for path, changed in sizes.items()
        for name, own in _stated(model.get_submodule(path), changed).items()
        if all(rule(name, changed[size] > 0) for size in own)
    )


@torch.no_grad()
def resize(
    model: nn.Module,
    remainder: Mapping[str, Indices],
    attributes: Attributes = MappingProxyType({}),
    norms: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Keep some indices of the tensors of a network, and note on it which: `kept_indices` and `kept_attributes`.

    Args:
        model: the network, which is changed. Its tensors stay the same objects, and so do its modules except norms.
        remainder: what is left of each parameter and buffer that loses something.
        attributes: what changes of the attributes that modules have beside their tensors.
        norms: the norms that lose channels, with the dimension of the channels; noted as `kept_norms`.
    """
    shapes = {path: tensor_shapes(model.get_submodule(path)) for path in norms}
    fitted = {path: outputs_of_group(model.get_submodule(path)) for path in owners(remainder) if path not in norms}
    for path, changed in attributes.items():
        for name, value in changed.items():
            setattr(model.get_submodule(path), name, value)
    for name, indices in remainder.items():
        path, _, last = name.rpartition(".")
        tensor = getattr(model.get_submodule(path), last)
        values = tensor.detach()
        for dim, index in enumerate(indices):
            if index is not None:
                values = values.index_select(dim, index.to(values.device))
        tensor.grad = None
        tensor.data = values.contiguous()  # the same object: it may belong to several modules
    for path, outputs in fitted.items():
        fit(model.get_submodule(path), outputs)
    for path, dim in norms.items():
        norm = model.get_submodule(path)
        replace_module(model, norm, narrowed(norm, dim, shapes[path]))
    _note(model, remainder, attributes, norms)


def replace_module(model: nn.Module, module: nn.Module, other: nn.Module) -> None:
    """Put another module in the place of one, under all of its names."""
    for name, each in list(model.named_modules(remove_duplicate=False)):
        if each is module and other is not module:
            model.set_submodule(name, other)


def _note(model: Any, remainder: Mapping[str, Indices], attributes: Attributes, norms: Mapping[str, int]) -> None:
    """Note what is left of the network that it was at first, in plain data: a model may have been resized before."""
    indices = dict(getattr(model, "kept_indices", {}))
    for name, dims in remainder.items():
        before = indices.get(name, (None,) * len(dims))
        indices[name] = tuple(
            old if new is None else new.cpu() if old is None else old[new.cpu()]
            for old, new in zip(before, dims, strict=True)
        )
    noted = {path: dict(values) for path, values in getattr(model, "kept_attributes", {}).items()}
    for path, values in attributes.items():
        noted.setdefault(path, {}).update(values)
    model.kept_indices, model.kept_attributes = indices, noted
    model.kept_norms = {**getattr(model, "kept_norms", {}), **norms}


def restated_in(model: nn.Module, sizes: Sizes, follows: Places) -> Attributes:
    """The attributes of a network that follow sizes which change within its modules, as they should be."""
    found: dict[str, dict[str, Any]] = {}
    for path, changed in sizes.items():
        module = model.get_submodule(path)
        for name, own in _stated(module, changed).items():
            if (path, name) in follows:
                after, value = [abs(changed[size]) for size in own], getattr(module, name)
                found.setdefault(path, {})[name] = after[0] if type(value) is int else _sequence_like(value, after)
    return found


def _sequence_like(value: Any, numbers: list[int]) -> Any:
    """Numbers in a list or tuple of the same type; a named tuple takes them one by one."""
    return type(value)(*numbers) if hasattr(value, "_fields") else type(value)(numbers)


def _stated(module: nn.Module, changed: Mapping[int, int]) -> dict[str, Sequence[int]]:
    """The attributes of a module that are sizes which change, or lists of them: the sizes."""
    found: dict[str, Sequence[int]] = {}
    for name, value in vars(module).items():
        own = value if isinstance(value, list | tuple) else [value]
        if not name.startswith("_") and own and all(type(each) is int and each in changed for each in own):
            found[name] = own
    return found


def owners(names: Iterable[str]) -> list[str]:
    """The names of the modules that tensors belong to."""
    return list(dict.fromkeys(name.rpartition(".")[0] for name in names))


def outputs_of_group(module: nn.Module) -> int | None:
    """The size of a group of channels, for a convolution or a norm with groups; None for other modules."""
    if isinstance(module, _ConvNd) and module.groups > 1:
        return len(module.weight) // module.groups
    return module.num_channels // module.num_groups if isinstance(module, nn.GroupNorm) else None


def fit(module: nn.Module, group: int | None) -> None:
    """Make the sizes that a module of torch states agree with its tensors.

    Args:
        module: the module.
        group: its result of `outputs_of_group` when it was whole.
    """
    if isinstance(module, _ConvNd):
        first, second = module.weight.shape[:2]
        module.groups = module.groups if group is None else first // group
        transposed = isinstance(module, _ConvTransposeNd)
        module.in_channels, module.out_channels = (
            (first, second * module.groups) if transposed else (second * module.groups, first)
        )
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, nn.Embedding):
        module.num_embeddings, module.embedding_dim = module.weight.shape
    elif isinstance(module, _NormBase):
        tensors = [each for each in (module.weight, module.running_mean) if each is not None]
        module.num_features = len(tensors[0]) if tensors else module.num_features
    elif isinstance(module, nn.GroupNorm) and group is not None:
        module.num_channels, module.num_groups = len(module.weight), len(module.weight) // group
    elif isinstance(module, nn.RNNBase):
        state = module.get_parameter("weight_hr_l0" if module.proj_size else "weight_hh_l0")
        module.hidden_size, module.input_size = state.shape[1], module.get_parameter("weight_ih_l0").shape[1]
        module.proj_size = state.shape[0] if module.proj_size else 0
    elif isinstance(module, nn.RNNCellBase):
        module.hidden_size, module.input_size = module.weight_hh.shape[1], module.weight_ih.shape[1]
    elif isinstance(module, nn.PReLU):
        module.num_parameters = len(module.weight)
    elif is_transposed(module):
        module.nx, module.nf = module.get_parameter("weight").shape  # type: ignore[assignment]


def changed_sizes(graph: ChannelGraph, kept: Tensor) -> dict[str, dict[int, int]]:
    """The sizes that change within each module, for operations whose code may name them.

    A size that became several others is left out. One that also stays somewhere in the module is negative: the names
    of attributes decide which of them follow it.
    """
    changed: dict[str, dict[int, set[int]]] = {}
    stays: dict[str, set[int]] = {}
    for node, result in graph.propagation.values.items():
        if node.op != "call_function" or not NAMING.search(str(node.target)):
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
