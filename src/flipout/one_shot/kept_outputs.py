"""The outputs of a block for all batches, and memory that is given back to the system."""

from __future__ import annotations

import ctypes
import shutil
import tempfile
import weakref
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..channels.comparison import tensors_of
from .backup import IN_MEMORY


class KeptOutputs:
    """The outputs of a block for each batch: in memory up to `IN_MEMORY` bytes together, and more in temporary files.

    Args:
        number: the number of batches.
    """

    def __init__(self, number: int) -> None:
        self._outputs: list[Any] = [None] * number

    @cached_property
    def _folder(self) -> Path:
        """A folder that is deleted with this object."""
        path = tempfile.mkdtemp(prefix="flipout-")
        weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)
        return Path(path)

    def put(self, number: int, output: Any) -> None:
        """Keep the output for a batch, in place of an earlier one."""
        tensors = tensors_of(output)
        if sum(each.nbytes for each in tensors) * len(self._outputs) > IN_MEMORY:
            torch.save(
                [each.detach().clone() for each in tensors], self._folder / str(number)
            )  # a view would save its base
            output = pytree.tree_map_only(Tensor, lambda _: _Place(), output)
        self._outputs[number] = output

    def get(self, number: int) -> Any:
        """A copy of the output for a batch: the network may change it in place."""
        output = self._outputs[number]
        if not any(isinstance(leaf, _Place) for leaf in pytree.tree_leaves(output)):
            return clone(output)
        tensors = iter(torch.load(self._folder / str(number), weights_only=True))
        return pytree.tree_map_only(_Place, lambda _: next(tensors), output)


class _Place:
    """Stands for a tensor that is in a file."""


def clone(output: Any) -> Any:
    """An output with copies of its tensors."""
    return pytree.tree_map_only(Tensor, torch.clone, output)


def give_back_memory() -> None:
    """Return what is free in the memory of the process to the system, where the C library can do that (glibc).

    It keeps pieces of up to 32 MB for later otherwise, and the next layer needs other sizes.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
