"""Forms: what the optimizer trains, and what the network computes with.

Outside of `optimizer.step()` the parameters of a model hold what the network computes with. Inside, they hold what the
optimizer trains. A form says how one becomes the other:

    enter      before the update: the parameters become what is trained
    gradients  the gradients of what the network computes with become those of what is trained
    settle     after the update: the parameters become what the network computes with

The plain form, `Form` itself, is permanent pruning: both are the weights, and pruned ones are zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ..events import Selection
from ..kernels.step_loops import count_then, in_c, loop_of
from ..numerics import zero_pruned
from ..problems import Need
from ..runtime.groups import Group
from ..runtime.noise import add_noise
from ..runtime.optimizer_state import clear_state
from ..runtime.work import Work
from ..schedules import Pruning
from ..statistics.base import Kernel
from ..weights import Weight, count_weights


class Form:
    """Permanent pruning: pruned weights are zeros and stay zeros, and the optimizer trains the others.

    Your own form is a subclass with the three functions `entering`, `gradient` and `leaving`, which are elementwise and
    work in place. It overrides `slots` if it has something to remember for each weight. The functions get the weights,
    the mask as bytes, and the slots in the order in which `slots` returns them. Pass the form to a pruner as `form=`.
    """

    needs: ClassVar[Mapping[Need, str]] = {}
    """What a form is incompatible with; see `flipout.problems`."""

    shared: ClassVar[tuple[str, ...]] = ()
    """Slots that hold one number for a weight tensor, not one for each element."""

    entering: Callable[..., None] | None = None
    """`entering(weight, mask, *slots)`: replaces what the network computes with by what is trained. None: the same."""

    gradient: Callable[..., None] | None = None
    """`gradient(weight, grad, mask, *slots)`: changes the gradient of what the network computes with into that of what
    is trained, which `weight` holds. None: the same."""

    leaving: Callable[..., None] = staticmethod(zero_pruned)
    """`leaving(weight, mask, *slots)`: replaces what is trained by what the network computes with, 0 where pruned."""

    def slots(self, weight: Weight) -> dict[str, Tensor]:
        """What is kept for each element of a weight beyond its value, from the weights that training starts with.

        It is saved with the pruner. Change it in place.
        """
        return {}

    def start(self, work: Work) -> None:
        """Take the initial state from the weights. Called again if they change before the first step."""
        for weight in work.weights:
            weight.slots.update(self.slots(weight))
        work.forget()

    def watch(self, model: nn.Module, work: Work) -> None:
        """Register hooks on the model, if what it computes with depends on its calls. Does nothing by default.

        It is called when the pruner is attached, and again when a state was loaded.
        """

    def remove(self, work: Work) -> None:
        """Called when the pruner is removed. Remove all hooks from the model here."""

    # Around a step.

    def in_c(self) -> bool:
        """Whether there are loops in C for all of its functions."""
        functions = self.entering, self.gradient, self.leaving
        return all(function is None or loop_of(function) is not None for function in functions)

    _entered: list[Group]
    """The groups whose parameters hold what is trained at the moment."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        new = super().__new__(cls)
        new._entered = []  # a constructor of your own need not call ours
        return new

    def active(self, weight: Weight) -> bool:
        """Whether `entering` and `leaving` apply at the moment; the same for all weights."""
        return True

    def learns_pruned(self, weight: Weight) -> bool:
        """Whether the optimizer changes what belongs to pruned weights, so that their gradients are needed."""
        return False

    def learning(self, weight: Weight) -> Tensor:
        """Marks the elements that the optimizer changes."""
        return torch.ones_like(weight.mask) if self.learns_pruned(weight) else weight.mask

    def trained(self, weight: Weight) -> Tensor:
        """What the optimizer trains of a weight, wherever it stands at the moment."""
        if self.entering is None or not self.active(weight) or self._entered:
            return weight.local
        values = weight.local.detach().clone()
        self.entering(values, weight.bytes, *weight.slots.values())
        return values

    def enter(self, work: Work) -> None:
        """Put what is trained into the parameters."""
        if self.entering is None:
            return
        for group in work.groups:
            if group not in self._entered and self._transforms(group):
                group.load()
                work.kernels.run(self.entering, group, group.values, group.mask, *self._slots_of(group))
                self._entered.append(group)
                group.store()

    def gradients(self, work: Work, step: int, scale: Tensor | float) -> None:
        """Change the gradients into those of what is trained, add noise, and zero them where weights are pruned.

        `scale` is the factor that a gradient scaler has multiplied them with.
        """
        noisy = work.noise is not None and work.noise.scale > 0
        for group in work.groups:
            if not noisy and self.gradient is None:
                if not group.dense:
                    group.zero_grads()
                continue
            if (grads := group.load_grads()) is None:
                continue
            if self.gradient is not None:
                group.load()
                work.kernels.run(self.gradient, group, group.values, grads, group.mask, *self._slots_of(group))
            if work.noise is not None and noisy:
                add_noise(work.noise, work.kernels, group, grads, step, scale, hidden=False)
            else:
                zero_pruned(grads, group.mask)
            group.store_grads()

    def settle(self, work: Work, step: int) -> None:
        """Run the kernels of the statistics, and put what the network computes with into the parameters, in one loop.

        `step` counts the update.
        """
        for group in work.groups:
            kernels, states = _kernels_of(group, step)
            if not kernels and not self._transforms(group):
                if not group.dense:
                    group.zero()
            else:
                group.load()
                every = self.learns_pruned(group.weights[0])
                slots = self._slots_of(group) if self._transforms(group) else []
                leaving = self.leaving if self._transforms(group) else zero_pruned
                settle = _fused(kernels, leaving, len(slots), every)
                work.kernels.run(settle, group, group.values, group.mask, *slots, *states)
                group.store()
            if group in self._entered:  # one by one: a kernel of a later group may fail
                self._entered.remove(group)
        self._entered.clear()

    def leave(self, work: Work) -> None:
        """Put what the network computes with into the parameters, if what is trained stands there."""
        while self._entered:
            group = self._entered[-1]
            group.load()
            work.kernels.run(self.leaving, group, group.values, group.mask, *self._slots_of(group))
            group.store()
            self._entered.pop()

    def _transforms(self, group: Group) -> bool:
        """Whether there is a difference between what is trained and what the network computes with."""
        return self.entering is not None and self.active(group.weights[0])

    def _slots_of(self, group: Group) -> list[Tensor]:
        """The slots of a group, in the layout of its weights."""
        holders = [weight.slots for weight in group.weights]
        return [group.adopt(holders, key) for key in group.weights[0].slots]

    # In an event.

    def plan(self, prunings: Sequence[Pruning], steps: int) -> list[Pruning]:
        """The events of a training, from the prunings of a schedule."""
        return list(prunings)

    def permanent(self, step: int) -> bool:
        """Whether no pruned weight can come back after a step."""
        return True

    def ranks_pruned(self, step: int) -> bool:
        """Whether an event at a step also ranks pruned weights."""
        return False

    def returning(self, step: int, keep: int) -> int:
        """The most weights that can come back in an event that keeps `keep` weights."""
        return 0

    @contextmanager
    def ranked(self, work: Work) -> Iterator[None]:
        """What an event ranks stands in the parameters within the block."""
        self.enter(work)
        try:
            yield
        finally:
            self.leave(work)

    def apply(self, work: Work, selection: Selection) -> None:
        """Change the masks, zero the pruned weights, and clear the optimizer's state of every weight that changed.

        A weight that grows back starts at 0, without momentum.
        """
        for weight, pruned in zip(work.weights, selection.prune, strict=True):
            weight.mask ^= pruned
        for group in work.groups:
            group.zero()
        for number, weight in enumerate(work.weights):
            clear_state(work.optimizer, weight, weight.mask)  # also of weights that grow: they are still pruned here
            if selection.grow:
                weight.mask |= selection.grow[number]
        count_weights(work.weights)

    def freeze(self, work: Work) -> None:
        """Called after the events of a step from which on pruning is permanent."""

    # In a state.

    def settings(self) -> Any:
        """What a saved state must agree with: by default the class and its public attributes."""
        own = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return {"form": type(self).__name__, **own}

    def saved(self, weight: Weight) -> dict[str, Tensor]:
        """The slots of a weight as they are saved: the same names and shapes at every step."""
        return weight.slots

    def load(self, work: Work, saved: Mapping[str, Mapping[str, Tensor]], step: int, events: int) -> None:
        """Restore the slots that `saved` returned, after the masks. `events` is how many there were."""
        for weight in work.weights:
            for key, tensor in weight.slots.items():
                value = saved[weight.name][key]
                tensor.copy_(value if key in self.shared else weight.take(value))


def _kernels_of(group: Group, step: int) -> tuple[tuple[tuple[Kernel, int], ...], list[Tensor]]:
    """The kernels of the statistics of a group, each with the number of its state tensors, and these tensors."""
    kernels, states = [], []
    for name, statistic in group.weights[0].statistics.items():
        if (kernel := statistic.kernel_at(step)) is not None:
            holders = [weight.statistics[name].state for weight in group.weights]
            tensors = [group.adopt(holders, key) for key in statistic.elements]
            kernels.append((kernel, len(tensors)))
            states += tensors
    return tuple(kernels), states


@cache
def _fused(
    kernels: tuple[tuple[Kernel, int], ...], leaving: Callable[..., None], slots: int, every: bool
) -> Callable[..., None]:
    """One function that runs kernels of statistics, each on its own state, and then puts back what the network computes
    with. With `every`, statistics see all weights as trained, pruned ones too."""

    def settle(weight: Tensor, mask: Tensor, *tensors: Tensor) -> None:
        trained = torch.ones_like(mask) if every and kernels else mask
        first = slots
        for kernel, count in kernels:
            kernel(weight, trained, *tensors[first : first + count])
            first += count
        leaving(weight, mask, *tensors[:slots])

    last = loop_of(leaving)
    if last is not None and not kernels:
        return in_c(last)(settle)
    count = loop_of(kernels[0][0]) if len(kernels) == 1 else None
    return settle if last is None or count is None else in_c(partial(count_then, count, last, every=every))(settle)
