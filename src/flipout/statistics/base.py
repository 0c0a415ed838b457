"""The protocol of a statistic: what it keeps, when it is updated, and how a criterion reads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import ClassVar, Literal, Self

from torch import Tensor

from ..views import Positions

Kernel = Callable[..., None]
Reader = Callable[..., Tensor]


@dataclass(frozen=True)
class Place:
    """What a statistic knows about its weight tensor: its number among the parameters of the model, the seed of the
    pruner, the number of weights that feed one output, and which elements of the original tensor it holds (None: all).
    """

    tensor: int = 0
    seed: int = 0
    fan_in: int = 1
    positions: Positions | None = None


class Statistic:
    """A statistic of one weight tensor. `state` holds what it keeps between steps; it is saved with the pruner.

    Your own statistic overrides the methods that it needs. Pass it to a pruner as `statistics={"name": MyStatistic}`,
    or attach it to the criterion that uses it with `criteria.with_statistics`. A criterion asks for it by name.

    A statistic with an elementwise update can declare `kernel`, and one with an elementwise value can declare `reader`.
    Both are plain functions of tensors. They run on many weights at once, block by block or compiled into one
    loop, together with the zeroing of pruned weights and with the criterion. For that, the tensors in `state` may be
    moved into shared memory: change them in place.
    """

    gradient: ClassVar[Literal["masked", "unmasked"] | None] = "masked"
    """The gradient that `before` gets: "masked" is zero at pruned weights, "unmasked" is as the backward pass computed
    it, and None is no gradient."""

    only_for_prunings: ClassVar[bool] = False
    """Whether only prunings read it. Then it gets no gradients after the last pruning."""

    shared: ClassVar[tuple[str, ...]] = ()
    """State that belongs to the weight tensor as a whole, such as a count of steps. It may have any shape, and kernels
    and readers do not get it."""

    kernel: Kernel | None = None
    """A fused form of `after`: `kernel(weight, mask, *state)` updates the state tensors in place, element by element.
    The mask is a tensor of bytes, and every state tensor has the weight's shape. If declared, `after` is not called.
    A constructor may set another one, which must be a function of a module."""

    reader: Reader | None = None
    """A fused form of `value`: `reader(weight, *state)` returns the value, element by element. It may return floats for
    integers. Every state tensor must have the weight's shape."""

    def __init_subclass__(cls) -> None:
        """A subclass that overrides `after` or `value` does not inherit their fused forms, which do something else."""
        for form, name in (("kernel", "after"), ("reader", "value")):
            if form in vars(cls):
                function = vars(cls)[form]
                setattr(cls, form, staticmethod(function) if isinstance(function, FunctionType) else function)
            elif name in vars(cls):
                setattr(cls, form, None)
        for many, one in (("before_all", "before"), ("after_all", "after")):
            if one in vars(cls) and many not in vars(cls):
                setattr(cls, many, vars(Statistic)[many])

    def __init__(self, weight: Tensor, place: Place) -> None:
        self.place = place
        self.state: dict[str, Tensor] = {}

    def started(self, weight: Tensor) -> None:
        """Called before the first step, with the weights that training starts from. Note initial values here.

        The weights that the constructor gets may be replaced before training starts, by those of a checkpoint.
        """

    def changed(self, weight: Tensor) -> None:
        """Called before a step if something other than a step may have changed the weights since the last one.

        (Torch counts the changes of a tensor. It does not see changes made through `.data`.)
        """

    def before(self, weight: Tensor, grad: Tensor | None) -> None:
        """Called before each optimizer step. The gradient is unscaled and has no noise; do not change it."""

    def after(self, weight: Tensor, alive: Tensor) -> None:
        """Called after each optimizer step, before pruned weights are zeroed. `alive` marks the weights that the
        optimizer trains."""

    def kernel_at(self, step: int) -> Kernel | None:
        """The kernel for a step, counted from 1. It must be the same for all weights."""
        return self.kernel

    def loaded(self) -> None:
        """Called after a saved state was copied into `state`."""

    def value(self, weight: Tensor, step: int) -> Tensor:
        """The tensor that the criterion gets, of the weight's shape."""
        raise NotImplementedError

    @classmethod
    def before_all(cls, statistics: Sequence[Self], weights: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
        """`before` of many weights. A statistic that computes something overrides it with operations on lists."""
        for statistic, weight, grad in zip(statistics, weights, grads, strict=True):
            statistic.before(weight, grad)

    @classmethod
    def after_all(cls, statistics: Sequence[Self], weights: Sequence[Tensor], alive: Sequence[Tensor]) -> None:
        """`after` of many weights."""
        for statistic, weight, mask in zip(statistics, weights, alive, strict=True):
            statistic.after(weight, mask)

    @property
    def elements(self) -> dict[str, Tensor]:
        """The state that kernels and readers get: one element for each weight."""
        return {key: tensor for key, tensor in self.state.items() if key not in self.shared}

    def check_shapes(self, name: str, weight: Tensor) -> None:
        """Refuse state that a declared kernel or reader cannot work with."""
        odd = [key for key, tensor in self.elements.items() if tensor.shape != weight.shape]
        if odd and (self.kernel is not None or self.reader is not None):
            raise TypeError(
                f"the statistic {name!r} declares a kernel or a reader, but its state {', '.join(odd)} does not have "
                "the shape of the weight; override after() and value() instead, or name it in `shared`"
            )
