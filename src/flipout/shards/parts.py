"""The part of a weight that a rank holds, and what the ranks that hold the others tell each other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..positions import Positions
from .layout import positions_of, sharding_dimensions, spreading_dimensions
from .local_tensors import is_sharded, local_of

Reduce = Callable[[Tensor, Any], Tensor]


class Part:
    """The part of a sharded weight that this rank holds.

    Every method that reduces must be called on all ranks of the weight's mesh at the same time. Where the weight is
    replicated, nothing is exchanged: those ranks compute the same.
    """

    def __init__(self, weight: Any, name: str) -> None:
        self.positions: Positions = positions_of(weight, name)
        self._mesh, self._placements = weight.device_mesh, tuple(weight.placements)
        self._stride = weight.stride()
        self._strided = any(type(placement).__name__ == "_StridedShard" for placement in self._placements)
        self._sharding, self._spreading = sharding_dimensions(weight), spreading_dimensions(weight)

    @property
    def size(self) -> int:
        """The number of elements of the whole weight."""
        return self.positions.shape.numel()

    @property
    def key(self) -> Hashable:
        """Numbers of weights with the same key can be summed together, in one exchange."""
        return self._mesh, self._sharding

    def elements(self) -> Tensor:
        """The index of each element of this part in the whole weight, in the shape of the part."""
        return self.positions.elements()

    @property
    def coordinates(self) -> tuple[tuple[int, ...], ...]:
        """Which part this is, in plain numbers: ranks with the same ones hold the same elements."""
        place = self._mesh.get_coordinate()
        return tuple((number, place[number]) for number in self._sharding)

    @property
    def spread(self) -> bool:
        """Whether other ranks hold elements of the same rows."""
        return bool(self._spreading)

    def sum(self, numbers: Tensor) -> Tensor:
        """The sum over all parts of the weight."""
        return self._reduced(numbers, self._sharding, _summed)

    def sum_of_rows(self, numbers: Tensor) -> Tensor:
        """The sum over the parts that hold other elements of the same rows."""
        return self._reduced(numbers, self._spreading, _summed)

    def max(self, numbers: Tensor) -> Tensor:
        """The largest over all parts of the weight."""
        return self._reduced(numbers, self._sharding, _largest)

    def wrap(self, local: Tensor) -> Tensor:
        """A DTensor of the weight's layout whose local tensor is this one."""
        from torch.distributed.tensor import DTensor

        shape = self.positions.shape
        wrapped: Tensor = DTensor.from_local(
            local.detach(), self._mesh, self._placements, run_check=False, shape=shape, stride=self._stride
        )
        return wrapped

    def gather(self, local: Tensor) -> Tensor:
        """The whole tensor, of which every rank gives its part."""
        if local.dtype == torch.bool:  # not every backend exchanges booleans
            return self.gather(local.view(torch.uint8)).view(torch.bool)
        if not self._strided:
            whole: Tensor = self.wrap(local.contiguous()).full_tensor()  # type: ignore[attr-defined]
            return whole
        # Torch gathers such a layout in several steps, and warns of it.
        places = self.elements().flatten().to(local.device)
        flat = torch.zeros(self.size, dtype=local.dtype, device=local.device).index_copy_(0, places, local.flatten())
        return self._reduced(flat, self._sharding, _added).view(self.positions.shape)

    def cut(self, whole: Tensor) -> Tensor:
        """This rank's part of a whole tensor."""
        for dimension, index in enumerate(self.positions.indices):
            if index is not None:
                whole = whole.index_select(dimension, index.to(whole.device))
        return whole

    def part_of(self, tensor: Any) -> Tensor:
        """This rank's part of a tensor of the weight's shape: a DTensor of any layout, or an ordinary tensor."""
        if not is_sharded(tensor):
            return self.cut(tensor)
        if tensor.device_mesh == self._mesh and tuple(tensor.placements) == self._placements:
            return local_of(tensor)
        return self.cut(tensor.full_tensor())

    def _reduced(self, numbers: Tensor, dimensions: Sequence[int], reduce: Reduce) -> Tensor:
        device = numbers.device
        for dimension in dimensions:
            numbers = reduce(numbers.to(self._mesh.device_type), self._mesh.get_group(dimension))
        return numbers.to(device)


def part_of(weight: Tensor, name: str) -> Part | None:
    """The part of a weight that this rank holds; None for an ordinary weight, of which it holds everything."""
    return Part(weight, name) if is_sharded(weight) else None


def on_any_rank(condition: bool, parts: Sequence[Part | None]) -> bool:
    """Whether a condition holds on any rank that holds a part of these weights. Without parts, whether it holds."""
    number = torch.tensor(int(condition), device="cpu")
    for part in {part.key: part for part in parts if part is not None}.values():
        number = part.max(number)
    return bool(number)


def _summed(numbers: Tensor, group: Any) -> Tensor:
    """The sum over the ranks of a group. Floats are added in the order of the ranks, so that it has the same bits on
    every rank, and in every group."""
    if not numbers.is_floating_point():
        return _all_reduced(numbers, group, torch.distributed.ReduceOp.SUM)
    gathered = [torch.empty_like(numbers) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(gathered, numbers.contiguous(), group=group)
    return torch.stack(gathered).sum(0)


def _added(numbers: Tensor, group: Any) -> Tensor:
    """The sum over the ranks of a group, where at most one rank has a number that is not 0."""
    return _all_reduced(numbers, group, torch.distributed.ReduceOp.SUM)


def _largest(numbers: Tensor, group: Any) -> Tensor:
    return _all_reduced(numbers, group, torch.distributed.ReduceOp.MAX)


def _all_reduced(numbers: Tensor, group: Any, operation: Any) -> Tensor:
    numbers = numbers.clone(memory_format=torch.contiguous_format)
    torch.distributed.all_reduce(numbers, operation, group=group)
    return numbers
