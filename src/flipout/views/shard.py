"""A shard: the elements of a DTensor (FSDP2, tensor parallelism) that this rank holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .dtensors import align_gradient, is_sharded, local_of
from .positions import Positions
from .view import View, whole

Reduce = Callable[[Tensor, Any], Tensor]


class Shard(View):
    """The elements of a sharded weight that this rank holds.

    Every method that reduces must be called on all ranks of the weight's mesh at the same time. Where the weight is
    replicated, nothing is exchanged: those ranks compute the same.
    """

    def __init__(self, weight: Any, name: str) -> None:
        super().__init__(_positions_of(weight, name))
        self._mesh, self._placements = weight.device_mesh, tuple(weight.placements)
        self._stride = weight.stride()
        self._strided = any(type(placement).__name__ == "_StridedShard" for placement in self._placements)
        dimensions = [_dimension_of(placement) for placement in weight.placements]
        self._sharding = tuple(number for number, split in enumerate(dimensions) if split is not None)
        # A row is everything under one index of the first dimension, and a vector is one row.
        self._spreading = tuple(number for number in self._sharding if dimensions[number] or len(weight.shape) < 2)
        self.key = self._mesh, self._sharding
        self.spread = bool(self._spreading)
        place = self._mesh.get_coordinate()
        self.coordinates = tuple((number, place[number]) for number in self._sharding)

    def local(self, parameter: Tensor) -> Tensor:
        return local_of(parameter)

    def grad(self, parameter: Tensor) -> Tensor | None:
        return None if parameter.grad is None else local_of(parameter.grad)

    def shown(self, local: Tensor) -> Tensor:
        """A DTensor of the weight's layout whose local tensor is this one."""
        from torch.distributed.tensor import DTensor

        shape = self.positions.shape
        wrapped: Tensor = DTensor.from_local(
            local.detach(), self._mesh, self._placements, run_check=False, shape=shape, stride=self._stride
        )
        return wrapped

    def take(self, tensor: Any) -> Tensor:
        """The elements that this rank holds, of a DTensor of any layout or of an ordinary tensor."""
        if is_sharded(tensor):
            if tensor.device_mesh == self._mesh and tuple(tensor.placements) == self._placements:
                return local_of(tensor)
            tensor = tensor.full_tensor()
        for dimension, index in enumerate(self.positions.indices):
            if index is not None:
                tensor = tensor.index_select(dimension, index.to(tensor.device))
        taken: Tensor = tensor
        return taken

    def gather(self, local: Tensor) -> Tensor:
        if local.dtype == torch.bool:  # not every backend exchanges booleans
            return self.gather(local.view(torch.uint8)).view(torch.bool)
        if not self._strided:
            gathered: Tensor = self.shown(local.contiguous()).full_tensor()  # type: ignore[attr-defined]
            return gathered
        # Torch gathers such a layout in several steps, and warns of it.
        places = self.elements().flatten().to(local.device)
        flat = torch.zeros(self.size, dtype=local.dtype, device=local.device).index_copy_(0, places, local.flatten())
        return self._reduced(flat, self._sharding, _added).view(self.positions.shape)

    def sum(self, numbers: Tensor) -> Tensor:
        return self._reduced(numbers, self._sharding, _summed)

    def sum_of_rows(self, numbers: Tensor) -> Tensor:
        return self._reduced(numbers, self._spreading, _summed)

    def max(self, numbers: Tensor) -> Tensor:
        return self._reduced(numbers, self._sharding, _largest)

    def version(self, parameter: Tensor) -> tuple[int, ...]:
        """Torch counts some changes for the DTensor alone, and some for its local tensor."""
        local = local_of(parameter)
        return parameter._version, local._version, local.data_ptr()

    def prepare(self, parameter: Tensor) -> None:
        align_gradient(parameter)

    def _reduced(self, numbers: Tensor, dimensions: Sequence[int], reduce: Reduce) -> Tensor:
        device = numbers.device
        for dimension in dimensions:
            numbers = reduce(numbers.to(self._mesh.device_type), self._mesh.get_group(dimension))
        return numbers.to(device)


def view_of(parameter: Tensor, name: str) -> View:
    """The view of a weight: a shard of a DTensor, or the whole tensor."""
    return Shard(parameter, name) if is_sharded(parameter) else whole(parameter)


class DifferentiableSum(torch.autograd.Function):
    """A sum over the shards of a weight that gradients pass through, for penalties: `apply(number, view)`.

    Every rank computes the same value from the sum, so the gradient of its own term is that of the sum.
    """

    @staticmethod
    def forward(ctx: Any, number: Tensor, view: View) -> Tensor:
        return view.sum(number)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def _positions_of(weight: Any, name: str) -> Positions:
    """The elements of a DTensor that this rank holds. `name` is for the error of a layout that is not known."""
    indices: list[Tensor | None] = []
    for dimension, size in enumerate(weight.shape):
        held = torch.arange(size, device="cpu")
        for mesh_dimension in _order(weight.placements, dimension):
            pieces = held.tensor_split(_ends(len(held), weight.device_mesh.size(mesh_dimension)))
            held = pieces[weight.device_mesh.get_coordinate()[mesh_dimension]]
        indices.append(None if len(held) == size else held)
    positions = Positions(torch.Size(weight.shape), tuple(indices))
    known = {"Shard", "_StridedShard", "Replicate"}
    if positions.held != weight.to_local().shape or {type(each).__name__ for each in weight.placements} - known:
        raise ValueError(
            f"{name} is a DTensor with the layout {weight.placements}, which is not supported: pruning needs Shard and "
            "Replicate, or FSDP2 together with tensor parallelism. Use such a layout, or leave the weight out with "
            "exclude="
        )
    return positions


def _order(placements: Any, dimension: int) -> list[int]:
    """The mesh dimensions that split a dimension of the tensor, in the order in which they do.

    FSDP2 splits what tensor parallelism has already split, although its mesh dimension comes first: `_StridedShard`.
    """
    splitting = [number for number, placement in enumerate(placements) if _dimension_of(placement) == dimension]
    return sorted(splitting, key=lambda number: type(placements[number]).__name__ == "_StridedShard")


def _ends(size: int, pieces: int) -> list[int]:
    """Where the pieces of a dimension end, as `torch.chunk` cuts it: the last ones may be shorter, or empty."""
    step = -(-size // pieces)
    return [min(size, step * number) for number in range(1, pieces)]


def _dimension_of(placement: Any) -> int | None:
    """The dimension of the tensor that a placement splits; None if it splits none."""
    dimension: int | None = getattr(placement, "dim", None)
    return dimension


def _summed(numbers: Tensor, group: Any) -> Tensor:
    """The sum over the ranks of a group. Floats are added in the order of the ranks, so that it has the same bits on
    every rank, and in every group."""
    if not numbers.is_floating_point():
        return _added(numbers, group)
    gathered = [torch.empty_like(numbers) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(gathered, numbers.contiguous(), group=group)
    return torch.stack(gathered).sum(0)


def _added(numbers: Tensor, group: Any) -> Tensor:
    """The sum over the ranks of a group, of integers, or where at most one rank has a number that is not 0."""
    return _all_reduced(numbers, group, torch.distributed.ReduceOp.SUM)


def _largest(numbers: Tensor, group: Any) -> Tensor:
    return _all_reduced(numbers, group, torch.distributed.ReduceOp.MAX)


def _all_reduced(numbers: Tensor, group: Any, operation: Any) -> Tensor:
    numbers = numbers.clone(memory_format=torch.contiguous_format)
    torch.distributed.all_reduce(numbers, operation, group=group)
    return numbers
