"""A device without a device: tensors that say they are on another device, compute on the CPU, and count host syncs.

Such a tensor refuses to be mixed with CPU tensors, except for those without dimensions, as torch does. An operation is
a host sync if a GPU would make the program wait for its result: reading a value, copying to the CPU, and operations
whose output size depends on the values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

SYNCING = {
    aten._local_scalar_dense,
    aten.item,
    aten.is_nonzero,
    aten.equal,
    aten.nonzero,
    aten.masked_select,
    aten.bincount,  # it reads the largest value
    aten.unique_dim,
    aten._unique,
    aten._unique2,
    aten.unique_consecutive,
    aten.repeat_interleave,
}
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}


class Syncs:
    """The operations so far that made the program wait for the device."""

    def __init__(self) -> None:
        self.names: list[str] = []

    @contextlib.contextmanager
    def counted(self) -> Iterator[list[str]]:
        """The syncs inside the block, in order."""
        first, found = len(self.names), list[str]()
        yield found
        found.extend(self.names[first:])


syncs = Syncs()


class FakeTensorOnDevice(Tensor):
    """A tensor on the fake device; `on_cpu` holds its values."""

    on_cpu: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> FakeTensorOnDevice:
        tensor: FakeTensorOnDevice = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=device(),
            requires_grad=False,
        )
        tensor.on_cpu = inner
        return tensor

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return f"FakeTensorOnDevice({self.on_cpu!r})"

    def data_ptr(self) -> int:
        return self.on_cpu.data_ptr()

    def tolist(self) -> Any:
        syncs.names.append("tolist")
        return self.on_cpu.tolist()

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return run(func, args, kwargs or {})


class FactoriesOnDevice(TorchDispatchMode):
    """Sends the functions that create tensors, and the copies between devices, to the fake device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def device() -> torch.device:
    """A device type that torch knows but that nothing implements here.

    (A type of our own, PrivateUse1, would have to be registered before the first backward pass of the process.)
    """
    return torch.device("lazy", 0)


def run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run an operation on the CPU, and wrap its results if they belong on the device."""
    flat = pytree.tree_leaves((args, kwargs))
    tensors = [leaf for leaf in flat if isinstance(leaf, Tensor)]
    here = [t for t in tensors if isinstance(t, FakeTensorOnDevice)]
    target = kwargs.get("device")
    packet = func.overloadpacket
    copying = packet in (aten._to_copy, aten.copy_, aten.copy)
    if here and not copying:
        _refuse_mixing(packet, args, tensors)
    if here:
        _count_syncs(packet, args, target)
    if target is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
    inner_args, inner_kwargs = pytree.tree_map_only(FakeTensorOnDevice, lambda t: t.on_cpu, (tuple(args), kwargs))
    result = func(*inner_args, **inner_kwargs)
    on_device = _is_ours(target) if target is not None else bool(here)
    if not on_device or (packet in (aten.copy_,) and not isinstance(args[0], FakeTensorOnDevice)):
        return result if result is not inner_args[0] else args[0]
    known = {id(t.on_cpu): t for t in here}
    return pytree.tree_map_only(Tensor, lambda t: known[id(t)] if id(t) in known else FakeTensorOnDevice(t), result)


def _is_ours(target: Any) -> bool:
    return torch.device(target).type == "lazy"


def _refuse_mixing(packet: Any, args: Sequence[Any], tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        if not isinstance(tensor, FakeTensorOnDevice) and tensor.ndim:
            if packet in INDEXING and tensor is not args[0]:
                continue  # torch moves indices to the device
            raise RuntimeError(f"{packet}: expected all tensors to be on the same device, found cpu and lazy:0")


def _count_syncs(packet: Any, args: Sequence[Any], target: Any) -> None:
    if packet in SYNCING:
        syncs.names.append(str(packet))
    if packet is aten._to_copy and target is not None and not _is_ours(target):
        syncs.names.append("cpu")
    if packet is aten.copy_ and not isinstance(args[0], FakeTensorOnDevice):
        syncs.names.append("cpu")
    masks = [i for i in args[1] if isinstance(i, Tensor) and i.dtype == torch.bool] if packet in INDEXING else []
    if masks:
        syncs.names.append("boolean index")
