"""What a network costs: weights on live paths, multiply-adds, memory of activations, and bytes of files."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from ..channels.comparison import NamedExample, as_arguments, tensors_of
from ..channels.live_paths import EffectiveWeights, count_effective, prunable_weights
from ..channels.record import without_fast_paths
from ..runtime import attachments
from .sparse_file import sparse_bytes

aten = torch.ops.aten


def effective_weights(model: nn.Module, example_input: NamedExample) -> EffectiveWeights:
    """Count the weights on a live path, channel by channel, for the network in evaluation mode.

    The weights of Linear and convolution modules count, those that an attached pruner prunes, and the matrices of every
    other class of modules in which one has exact zeros, such as an `LSTM` that was pruned with `include=`.

        >>> model[0].weight.data[4:] = 0  # 12 of 16 channels have no input, so nothing depends on their outputs
        >>> counted = flipout.export.effective_weights(model, example_input)
        >>> counted.nonzero, counted.effective
        (112, 64)

    Args:
        model: the network; it is not changed.
        example_input: the inputs that the network is called with: a tensor, a tuple, or a dictionary of arguments by
            name.
    """
    return count_effective(model, as_arguments(example_input), weights_to_count(model))


def weights_to_count(model: nn.Module) -> dict[tuple[str, ...], Tensor]:
    """Return the weights that count as prunable; all that an attached pruner prunes are among them."""
    return prunable_weights(model, lambda weight: attachments.find(weight) is not None)


@dataclass(frozen=True)
class MultiplyAdds:
    """The multiply-adds of all matrix products and convolutions of a forward pass.

    Args:
        dense: all of them.
        nonzero: those that do not use a zero weight.
        not_counted: the names of operations that multiply with weights and have no formula.
    """

    dense: int
    nonzero: int
    not_counted: tuple[str, ...] = ()


@torch.no_grad()
def count_multiply_adds(network: nn.Module, inputs: tuple[Tensor, ...]) -> MultiplyAdds:
    """Run a network once and count its multiply-adds, in total and without those that use a zero weight."""
    counter = _Counter(network, inputs)
    with without_fast_paths(), counter:  # in a fused layer no product can be counted
        network(*inputs)
    return MultiplyAdds(counter.total, counter.total - counter.with_zero_weight, tuple(sorted(counter.not_counted)))


@dataclass(frozen=True)
class _Product:
    """One product of an operation: its number of multiply-adds, and the tensors that are multiplied."""

    multiply_adds: int
    operands: tuple[Tensor, ...] = ()


def _product(first: Tensor, second: Tensor, **_: Any) -> list[_Product]:
    """Return a product of a matrix with a vector, or with a matrix."""
    columns = second.shape[-1] if second.ndim > 1 else 1
    return [_Product(first.numel() * columns, (first, second))]


def _recurrent_layer(given: Tensor, for_input: Tensor, for_state: Tensor, *_: Any, **__: Any) -> list[_Product]:
    """Return the products of an LSTM layer: at each position, the input and the state with a matrix each."""
    positions = given.shape[0] * given.shape[1]
    return [_Product(positions * weight.numel(), (weight,)) for weight in (for_input, for_state)]


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> list[_Product]:
    flops = int(sdpa_flop_count(query.shape, key.shape, value.shape))  # type: ignore[no-untyped-call]
    return [_Product(flops // 2)]


FORMULAS: dict[Any, Callable[..., list[_Product]]] = {
    **dict.fromkeys((aten.mv, aten.dot, aten.vdot), _product),
    **dict.fromkeys((aten.addmv, aten.addbmm), lambda _, *product, **__: _product(*product)),
    aten.mkldnn_rnn_layer: _recurrent_layer,
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_fused_attention_overrideable: _attention,
}
"""The operations that torch's FLOP counter has no formula for."""
OPERANDS = {
    **dict.fromkeys((aten.mm, aten.bmm, aten._scaled_mm, aten.convolution, aten._convolution), slice(0, 2)),
    **dict.fromkeys((aten.addmm, aten.baddbmm), slice(1, 3)),
}
"""The positions of the tensors that are multiplied, for operations that torch's FLOP counter has a formula for."""
WITHOUT_PRODUCTS = {
    *(aten.embedding, aten.index, aten.index_select, aten.gather, aten.take, aten.cat, aten.stack, aten.copy_),
    *(aten.index_put, aten.index_put_, aten.scatter, aten.scatter_, aten.select_scatter, aten.slice_scatter),
    *(aten._embedding_bag, aten._embedding_bag_forward_only, aten.native_layer_norm),
}
"""Operations that may read matrices of weights, and are not matrix products or convolutions."""
NEW_TENSORS = {
    *(aten.zeros_like, aten.ones_like, aten.full_like, aten.empty_like, aten.rand_like, aten.randn_like),
    *(aten.new_zeros, aten.new_ones, aten.new_full, aten.new_empty),
}
"""Operations that read the shape or dtype of a tensor, but not its values."""


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts multiply-adds while it is active, and follows which tensors are computed from weights alone."""

    supports_higher_order_operators = True

    def __init__(self, network: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total, self.with_zero_weight, self.not_counted = 0, 0, set[str]()
        self.weights, self.data = _Storages(), _Storages()
        for tensor in (*network.parameters(), *network.buffers()):
            self.weights.add(tensor)
        for tensor in inputs:
            self.data.add(tensor)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, operation = kwargs or {}, getattr(function, "_overloadpacket", function)
        has_formula = operation in FORMULAS or operation in flop_registry
        if not has_formula and isinstance(function, OpOverload) and function is not torch.ops.prim.device.default:
            with self:  # in inference mode, operations arrive that consist of others
                result = function.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = function(*args, **kwargs)
        given = tensors_of((args, kwargs))
        if operation in FORMULAS:
            self._count(FORMULAS[operation](*args, **kwargs))
        elif operation in flop_registry:
            multiply_adds = int(flop_registry[operation](*args, **kwargs, out_val=result)) // 2
            self._count([_Product(multiply_adds, tuple(args[OPERANDS.get(operation, slice(0))]))])
        elif self._may_multiply(function, given):
            self.not_counted.add(str(operation))
        if operation not in NEW_TENSORS:
            self._follow(given, result)
        return result

    def _count(self, products: list[_Product]) -> None:
        for product in products:
            # Every element of a weight takes part in the same number of multiply-adds.
            weights = [each for each in product.operands if each.numel() and self._is_weight(each)]
            shares = (1 - Fraction(int(each.count_nonzero()), each.numel()) for each in weights)
            self.total += product.multiply_adds
            self.with_zero_weight += int(product.multiply_adds * max(shares, default=Fraction()))

    def _may_multiply(self, function: Any, given: Sequence[Tensor]) -> bool:
        """Return whether an operation without a formula may multiply a matrix of weights with data."""
        if isinstance(function, OpOverload):
            is_elementwise = torch.Tag.pointwise in function.tags
            if is_elementwise or function.is_view or function._overloadpacket in WITHOUT_PRODUCTS:
                return False
        reads_weights = any(each.ndim > 1 and self._is_weight(each) for each in given)
        return reads_weights and any(each in self.data for each in given)

    def _is_weight(self, tensor: Tensor) -> bool:
        return tensor in self.weights and tensor not in self.data  # data may be written into a buffer

    def _follow(self, given: Sequence[Tensor], result: Any) -> None:
        """Mark the results of an operation as data if it reads data, else as weights if it reads weights."""
        for storages in (self.data, self.weights):
            if any(each in storages for each in given):
                for tensor in tensors_of(result):
                    storages.add(tensor)
                return


class _Storages:
    """A set of the memory of tensors; it forgets memory that is freed."""

    def __init__(self) -> None:
        self.keys: set[int] = set()

    def add(self, tensor: Tensor) -> None:
        if tensor.layout == torch.strided and tensor.untyped_storage()._cdata not in self.keys:
            storage = tensor.untyped_storage()
            self.keys.add(storage._cdata)
            weakref.finalize(storage, self.keys.discard, storage._cdata)

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor.layout == torch.strided and tensor.untyped_storage()._cdata in self.keys


class MemoryCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the memory of all tensors that are created while it is active and still exist."""

    def __init__(self, ignored: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counted, self.now, self.peak = ignored, 0, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tensors_of(result):
            if tensor.layout == torch.strided:
                self.watch(tensor.untyped_storage())
        return result

    def watch(self, storage: torch.UntypedStorage) -> None:
        """Count a storage until it is freed."""
        key, size = storage._cdata, storage.nbytes()
        if key in self.counted:
            return

        def freed() -> None:
            self.counted.discard(key)
            self.now -= size

        self.counted.add(key)
        weakref.finalize(storage, freed)
        self.now += size
        self.peak = max(self.peak, self.now)


@torch.no_grad()
def peak_activation_bytes(network: nn.Module, inputs: tuple[Tensor, ...]) -> int:
    """Return the most bytes that the inputs and all tensors computed from them take at one time in a forward pass.

    Weights and the temporary memory inside an operation do not count.
    """
    weights = {tensor.untyped_storage()._cdata for tensor in (*network.parameters(), *network.buffers())}
    with MemoryCounter(weights) as counter:
        network(*(tensor.clone() for tensor in inputs))
    return int(counter.peak)


def dense_state(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of the tensors of a network's state for a plain safetensors file; tied ones once."""
    seen: dict[object, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict().items():
        seen.setdefault((tensor.data_ptr(), tensor.shape) if tensor.numel() else name, (name, tensor))
    return {name: tensor.cpu().contiguous().clone() for name, tensor in seen.values()}


def dense_file_bytes(model: nn.Module) -> int:
    """Return the size of a plain safetensors file with the network's state."""
    return len(to_safetensors(dense_state(model)))


def sparse_file_bytes(model: nn.Module) -> int:
    """Return the size of a sparse file with the network's state."""
    return len(sparse_bytes(model))


def format_bytes(size: int) -> str:
    """Return a number of bytes as text, in B, kB, MB or GB."""
    power = min(int(math.log(max(size, 1), 1000)), 3)
    return f"{size:,} B" if power == 0 else f"{size / 1000**power:,.1f} {('kB', 'MB', 'GB')[power - 1]}"
