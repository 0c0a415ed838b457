"""What a recording of a network depends on: its modules, its code, and the shapes of what it is called with."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .copies import has_hooks

INTERNAL = frozenset(vars(nn.Module()))


class Structure:
    """A network and a call of it, without the values of tensors. Two that are equal have the same recording.

    `text` is None for a network that cannot be described: one with hooks, or with attributes that cannot be pickled.

    Args:
        network: the network.
        arguments: the arguments of a call.
    """

    def __init__(self, network: nn.Module, arguments: Any) -> None:
        self._code: list[Any] = []  # is kept, so that nothing else gets its number
        try:
            hooked = any(map(has_hooks, network.modules()))
            self.text = None if hooked else self._pickled([*_modules(network), *_call(arguments)])
        except Exception:  # a module or an attribute may refuse to be read or pickled
            self.text = None

    def _pickled(self, described: list[Any]) -> bytes:
        file = io.BytesIO()
        _Pickler(file, self._code).dump(described)
        return file.getvalue()


class _Pickler(pickle.Pickler):
    """Writes code by its identity: what is defined again under the same name is other code."""

    def __init__(self, file: io.BytesIO, code: list[Any]) -> None:
        super().__init__(file)
        self._code = code

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, type | FunctionType | BuiltinFunctionType | MethodType):
            return None
        self._code.append(obj)
        return id(obj)


def _modules(network: nn.Module) -> Iterator[Any]:
    """The modules of a network: their code, their attributes, and the tensors that they have in common."""
    numbers: dict[int, int] = {}
    for name, module in network.named_modules(remove_duplicate=False):
        yield name, type(module), type(module).forward, numbers.setdefault(id(module), len(numbers))
        yield {key: value for key, value in vars(module).items() if key not in INTERNAL}
        for key, tensor in {**module._parameters, **module._buffers}.items():
            yield key, None if tensor is None else (_shown(tensor), numbers.setdefault(id(tensor), len(numbers)))


def _call(arguments: Any) -> Iterator[Any]:
    leaves, spec = pytree.tree_flatten(arguments)
    yield [_shown(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    yield str(spec), torch.is_autocast_enabled(), torch.get_default_dtype()


def _shown(tensor: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), str(tensor.dtype), str(tensor.device), tensor.requires_grad
