"""Files of compacted networks: smaller tensors, and which channels of the original they are. No pickle.

A file is a safetensors file. `t:NAME` is a tensor of the network, and `i:DIM:NAME` are the indices that are left of one
of its dimensions. The metadata has the attributes of modules that changed, norms that lost channels, modules whose
channels are placed among constants, and tensors that are the same under two names. Everything in a file is checked
before it is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from ..atomic_files import replacing
from ..channels.graph import Indices
from ..channels.resize import resize
from ..channels.scatter import scatter_again, scattered_modules
from ..modules import unwrapped

FORMAT, VERSION = "flipout-compacted", "1"
TENSOR, INDEX = "t:", "i:"


class CompactedFileError(ValueError):
    """The file is not that of a compacted network, is damaged, or does not fit the architecture."""


def save_compacted(model: nn.Module, path: Path | str) -> None:
    """Write a compacted network: its tensors, and which channels of the original architecture are left.

    `load_compacted` reads it into a new model of the original architecture. The network may have been trained further
    after `compact`. An existing file is replaced atomically.

        >>> small = flipout.export.compact(model, example_input)
        >>> flipout.export.save_compacted(small, "small.safetensors")

    Args:
        model: what `compact` returned, or a network that was loaded from such a file.
        path: the file.
    """
    network: Any = unwrapped(model)
    scattered = scattered_modules(network)
    stored, names, same = dict[str, Tensor](), dict[tuple[Any, ...], str](), dict[str, str]()
    for name, tensor in network.state_dict().items():
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            raise TypeError(f"{name} is no plain tensor; a file of a compacted network holds plain tensors only")
        place = tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
        if tensor.numel() and place in names:
            same[name] = names[place]
            continue
        names[place] = name
        stored[TENSOR + name] = tensor.detach().cpu().contiguous().clone()
    for name, dims in sorted(getattr(network, "kept_indices", {}).items(), key=lambda item: item[0].count(".")):
        for dim, index in enumerate(dims):
            if index is not None and not _is_of_scatter(name, scattered):
                key = f"{INDEX}{dim}:{_first_name(name, scattered)}"
                before = stored.get(key)  # the module lost channels before the others were placed among constants
                index = index.to(torch.int64).cpu()
                stored[key] = (index if before is None else before[index]).clone()
    attributes: dict[str, dict[str, Any]] = {}
    for owner, values in getattr(network, "kept_attributes", {}).items():
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        attributes.setdefault(_first_name(owner, scattered), {}).update(plain)
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "class": type(network).__qualname__,
        "attributes": json.dumps(attributes),
        "norms": json.dumps(
            {_first_name(path, scattered): dim for path, dim in getattr(network, "kept_norms", {}).items()}
        ),
        "scattered": json.dumps(scattered),
        "same": json.dumps(same),
    }
    with replacing(Path(path)) as temporary:
        temporary.write_bytes(to_safetensors(stored, metadata))


def load_compacted(path: Path | str, build: Callable[[], nn.Module]) -> nn.Module:
    """Read a compacted network from a file into a new model of the original architecture.

    A file that is damaged, or belongs to another architecture, raises a `CompactedFileError`.

        >>> flipout.export.save_compacted(model, "small.safetensors")
        >>> build = lambda: torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
        >>> again = flipout.export.load_compacted("small.safetensors", build)

    Args:
        path: the file.
        build: returns a model of the original architecture, with any weights. It is made smaller and returned.
    """
    path = Path(path)
    try:
        tensors, metadata = _read(path)
        attributes = _mapping(metadata, "attributes")
        same = _mapping(metadata, "same")
        model = build()
        if not isinstance(model, nn.Module):
            raise CompactedFileError(f"build() returned a {type(model).__name__}; it must return the network")
        stated = metadata.get("class")
        try:
            remainder = _indices(model, tensors)
            norms = _checked_norms(model, _mapping(metadata, "norms"))
            resize(model, remainder, _checked_attributes(model, attributes), norms)
            _scatter(model, tensors, _mapping(metadata, "scattered"))
            _fill(model, tensors, same)
        except CompactedFileError as error:
            other = f"; the file is that of a {stated}, and build() returned a {type(model).__name__}"
            raise CompactedFileError(f"{error}{other if stated != type(model).__qualname__ else ''}") from error
    except CompactedFileError as error:
        raise CompactedFileError(f"{path} cannot be loaded: {error}") from error
    return model


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    if not path.is_file():
        raise CompactedFileError("there is no such file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise CompactedFileError("it was not written by flipout.export.save_compacted")
            if metadata.get("version") != VERSION:
                raise CompactedFileError(
                    f"it has version {metadata.get('version')!r} of the format, and this version of flipout reads "
                    f"{VERSION!r}"
                )
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118
    except SafetensorError as error:
        raise CompactedFileError(f"it is not a safetensors file, or it is damaged ({error})") from error


def _mapping(metadata: Mapping[str, str], key: str) -> dict[str, Any]:
    try:
        value = json.loads(metadata.get(key, ""))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise CompactedFileError(f"its {key} are not a JSON object")
    return value


def _indices(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Indices]:
    """The indices that are left of each tensor of a model, from those of a file."""
    here = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    found: dict[str, list[Tensor | None]] = {}
    for key, index in tensors.items():
        if key.startswith(TENSOR):
            continue
        dim, _, name = key.removeprefix(INDEX).partition(":")
        if not key.startswith(INDEX) or not dim.isdecimal():
            raise CompactedFileError(f"it has an entry {key!r}, which is neither a tensor nor its indices")
        if _is_added(model, name):
            continue
        if name not in here or int(dim) >= here[name].ndim:
            raise CompactedFileError(f"it has indices of dimension {dim} of {name}, which the network does not have")
        size = here[name].shape[int(dim)]
        if index.dtype != torch.int64 or index.ndim != 1 or not len(index):
            raise CompactedFileError(f"the indices of {name} are not a list of numbers")
        if int(index[0]) < 0 or int(index[-1]) >= size or not bool((index.diff() > 0).all()):
            raise CompactedFileError(f"the indices of dimension {dim} of {name} are not those of {size:,} channels")
        found.setdefault(name, [None] * here[name].ndim)[int(dim)] = index
    return {name: tuple(dims) for name, dims in found.items()}


def _is_added(model: nn.Module, name: str) -> bool:
    """Whether a tensor is a bias that folded constants have given a layer, which has none in this model."""
    path, _, last = name.rpartition(".")
    owner = dict(model.named_modules()).get(path)
    return owner is not None and owner._parameters.get(last, model) is None


def _checked_attributes(model: nn.Module, attributes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Attributes of a file, if each is a size that the network has, and not larger than its own."""
    modules, checked = dict(model.named_modules()), dict[str, dict[str, Any]]()
    for path, values in attributes.items():
        if path not in modules or not isinstance(values, dict):
            raise CompactedFileError(f"it has attributes of {path!r}, which is no module of the network")
        for name, value in values.items():
            here = vars(modules[path]).get(name)
            sizes, own = _sizes(value), _sizes(here)
            if own is None or sizes is None or len(sizes) != len(own) or any(map(_is_no_size, sizes, own)):
                raise CompactedFileError(f"{name} of {path!r} is {value!r} in it, and {here!r} in the network")
            checked.setdefault(path, {})[name] = type(here)(value) if isinstance(here, list | tuple) else value
    return checked


def _checked_norms(model: nn.Module, norms: Mapping[str, Any]) -> dict[str, int]:
    """Norms of a file that have lost channels, if the network has them, with the dimension of their channels."""
    modules = dict(model.named_modules())
    for path, dim in norms.items():
        is_norm = path in modules and bool(modules[path]._parameters)
        if not is_norm or type(dim) is not int or dim >= 0:
            raise CompactedFileError(f"it has a norm {path!r} over dimension {dim!r}, which the network does not have")
    return dict(norms)


def _scatter(model: nn.Module, tensors: Mapping[str, Tensor], scattered: Mapping[str, Any]) -> None:
    """Place the channels of modules among constants, the outer ones first."""
    done: set[nn.Module] = set()
    for path, dim in sorted(scattered.items(), key=lambda item: item[0].count(".")):
        order, constants = (tensors.get(f"{TENSOR}{path}.1.{name}") for name in ("order", "constants"))
        module = dict(model.named_modules(remove_duplicate=False)).get(path)
        if not path or module is None or order is None or constants is None or type(dim) is not int or dim >= 0:
            raise CompactedFileError(f"it has constants for the channels of {path!r}, which the network does not have")
        is_order = order.dtype == torch.int64 and order.ndim == 1 and len(order) > constants.numel()
        is_list = constants.ndim == 1 and constants.is_floating_point()
        if not is_order or not is_list or not torch.equal(order.sort().values, torch.arange(len(order))):
            raise CompactedFileError(
                f"the channels of {path!r} have no order, or constants that are no list of numbers"
            )
        if module not in done:  # it may have several names
            scatter_again(model, path, dim, order, constants)
            done.add(model.get_submodule(path))


def _first_name(name: str, scattered: Mapping[str, int]) -> str:
    """The name that a module or a tensor had before its channels were placed among constants."""
    for path in sorted(scattered, key=lambda path: -path.count(".")):
        if f"{name}.".startswith(f"{path}.0."):
            name = path + name.removeprefix(f"{path}.0")
    return name


def _is_of_scatter(name: str, scattered: Mapping[str, int]) -> bool:
    """Whether a tensor says where channels are placed; a file has it as it is."""
    return any(name in (f"{path}.1.order", f"{path}.1.constants") for path in scattered)


def _sizes(value: Any) -> list[int] | None:
    values = value if isinstance(value, list | tuple) else [value]
    return list(values) if all(type(each) is int for each in values) else None


def _is_no_size(value: int, own: int) -> bool:
    return not 1 <= value <= own


@torch.no_grad()
def _fill(model: nn.Module, tensors: Mapping[str, Tensor], same: Mapping[str, Any]) -> None:
    """Copy the tensors of a file into a model that has been made smaller."""
    state = {key.removeprefix(TENSOR): tensor for key, tensor in tensors.items() if key.startswith(TENSOR)}
    for name, other in same.items():
        if not isinstance(other, str) or other not in state or name in state:
            raise CompactedFileError(f"it says that {name} is the same tensor as {other}, which it does not have")
    expected = {name: value for name, value in model.state_dict(keep_vars=True).items() if isinstance(value, Tensor)}
    for name in state.keys() - expected.keys():
        if not _is_added(model, name):
            raise CompactedFileError(f"it has a tensor {name}, which the network does not have")
        path, _, last = name.rpartition(".")
        expected[name] = parameter = nn.Parameter(torch.empty_like(state[name]))
        model.get_submodule(path).register_parameter(last, parameter)
    for name, tensor in expected.items():
        saved = state.get(same.get(name, name))
        if saved is None:
            raise CompactedFileError(f"it has no tensor {name}")
        if saved.shape != tensor.shape or saved.is_floating_point() != tensor.is_floating_point():
            raise CompactedFileError(
                f"{name} is of {saved.dtype} and shape {tuple(saved.shape)} in it, and of {tensor.dtype} and "
                f"{tuple(tensor.shape)} in the network"
            )
        tensor.data = saved.to(tensor.device)  # the same object: it may belong to several modules
