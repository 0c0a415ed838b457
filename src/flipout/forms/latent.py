"""Latent forms: beside each weight `theta` a latent number is trained, and decides what the network computes with.

The network computes with `e(theta, latent, noise)`. Backward leaves `G = dL/de` in `.grad`, and the gradients of
`theta` and of the latent follow from it, element by element. The optimizer of the user trains `theta`. A small
optimizer of the form trains the latent, with the gradient of a penalty added. A latent belongs to one weight, or to a
row or a column of a weight tensor.

What stands in the parameters, and when:

    from a training call until the step      the sample of this step, e(theta, latent, noise)
    otherwise, and in evaluation mode        the deterministic weights, e(theta, latent)
    from the last event on                   plain weights: the latents are dropped

`training` of the module that holds a weight decides, and hooks before the call of a module see to it: see `ModeHooks`.
The noise of a step is a function of its number, so every micro-batch of a step sees the same sample. In the first step
the network computes with the weights that it starts with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..events import Selection
from ..kernels import latent_loops
from ..kernels.step_loops import in_c, loop_of
from ..numerics import masked, wide, zero_pruned
from ..problems import Need, NoSampleWarning, warn
from ..random_numbers import key, rows_of
from ..runtime.compiler import compiled
from ..runtime.groups import zero_in_place
from ..runtime.kernels import Kernels
from ..runtime.optimizer_state import group_of
from ..runtime.work import Work
from ..schedules import Pruning
from ..views import Positions
from ..weights import Weight
from .form import Form
from .mode_hooks import ModeHooks

NEARLY = 1e-4
"""Loaded weights that differ relatively by so much are the same; or, near 0, by a hundredth of it."""


@dataclass
class Shown:
    """What stands in a parameter: the sample of the step or the deterministic weights, and its version then."""

    sampled: bool = False
    version: tuple[int, ...] = ()
    """Empty after a state was loaded: then either may stand there, as another process has computed it."""


class Latent(Form):
    """What the latent forms share. A subclass has the equations: the functions `computed`, `backward`, `saliency` and
    `survives`, which run in C or compiled if the pruner does so, `start_of`, and `noise` if there is any.

    Args:
        lambda_: weight of the penalty in the loss.
        latent_lr: learning rate of the latents.
        seed: the seed of the noise.
    """

    needs: ClassVar[Mapping[Need, str]] = {
        "own form": "every weight has a latent number beside it, which the form trains",
        "whole weights": "the sample of a step must be in the parameters before they are gathered",
    }

    noisy: ClassVar[bool] = True
    """Whether there is noise: then the sample differs from the deterministic weights."""

    moments: ClassVar[tuple[str, ...]] = ("first", "second")
    """What the optimizer of the latents keeps. By default it is Adam."""

    def __init__(self, lambda_: float, latent_lr: float, seed: int) -> None:
        self.lambda_, self.latent_lr, self.seed = lambda_, latent_lr, seed
        self._step, self._steps, self._last, self._planned = 0, 1, 0, 0
        self._inside, self._warned, self._kernels = False, False, Kernels(compile=False)
        self._shown: dict[str, Shown] = {}
        self._gradients: dict[str, Tensor] = {}
        self._noise: dict[str, Tensor] = {}
        self._numbers: dict[str, tuple[Tensor, Tensor]] = {}
        self._hooks = ModeHooks()

    # The equations.

    def start_of(self, weight: Weight) -> Tensor:
        """The latents that training starts with."""
        raise NotImplementedError

    def noise(self, weight: Weight, step: int) -> Tensor | None:
        """The noise of a step."""
        return None

    computed: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    """`computed(theta, latent, noise)`: what the network computes with; without noise the deterministic weights."""

    backward: Callable[[Tensor, Tensor, Tensor | None, Tensor, Tensor], tuple[Tensor, Tensor]]
    """`backward(theta, latent, noise, grad, lambda_)`: the gradients of `theta` and of the latent, from that of
    `computed`, with `lambda_` times the penalty."""

    saliency: Callable[[Tensor, Tensor], Tensor]
    """`saliency(theta, latent)`: what an event ranks; the lowest are pruned first."""

    survives: Callable[[Tensor, Tensor], Tensor]
    """`survives(theta, latent)`: marks what is kept if no sparsity is asked for, which has the highest saliencies."""

    folded: Callable[[Tensor, Tensor], Tensor] = staticmethod(lambda theta, latent: theta)
    """`folded(theta, latent)`: the plain weights that remain when the latents are dropped."""

    def penalty_weight(self, step: int) -> float:
        """The weight of the penalty in a step."""
        return self.lambda_

    def update(self, weight: Weight, latent: Tensor, grad: Tensor, step: int) -> None:
        """Update the latents of a weight: a step of Adam. `step` counts from 1."""
        first, second = (weight.slots[name] for name in self.moments)
        run = self._kernels.loop(adam, latent, grad, first, second) or adam
        run(latent, grad, first, second, self.latent_lr, step)

    def drawn(self, draw: Callable[..., Any], use: str, where: Positions, weight: Weight, step: int) -> Tensor:
        """Random numbers of a step, by `normal_at` or `uniform_at`, in the shape of what is at some positions."""
        if weight.name not in self._numbers:
            self._numbers[weight.name] = rows_of(where, weight.local.device)
        drawn: Tensor = self.run(draw, *self._numbers[weight.name], *key(use, self.seed, step, weight.number))
        return drawn.view(where.held)

    def run(self, function: Callable[..., Any], *arguments: Tensor | int | None) -> Any:
        """Call a function of a module: as a loop in C if it has one, or compiled if the pruner compiles."""
        tensors = [each for each in arguments if isinstance(each, Tensor)]
        if (loop := self._kernels.loop(function, *tensors)) is not None:
            return loop(*arguments)
        if not self._kernels.compiled:
            return function(*arguments)
        kinds = [
            isinstance(each, Tensor) and (each.dtype, each.device.type, *(min(n, 2) for n in each.shape))
            for each in arguments
        ]
        return compiled(function, *kinds)(*arguments)

    def in_c(self) -> bool:
        return loop_of(self.computed) is not None and loop_of(self.backward) is not None

    # Around a step.

    def plan(self, prunings: Sequence[Pruning], steps: int) -> list[Pruning]:
        self._steps, self._last, self._planned = steps, prunings[-1].step, len(prunings)
        return list(prunings)

    def slots(self, weight: Weight) -> dict[str, Tensor]:
        """`theta`, its latents, and what their optimizer keeps."""
        latent = self.start_of(weight)
        moments = {name: torch.zeros_like(latent) for name in self.moments}
        return {"theta": weight.local.detach().clone(), "latent": latent, **moments}

    def start(self, work: Work) -> None:
        super().start(work)
        self._kernels = work.kernels
        self._numbers.clear()
        self._shown = {weight.name: Shown(version=_version(weight)) for weight in work.weights}

    def watch(self, model: nn.Module, work: Work) -> None:
        if self.noisy and work.weights[0].slots:
            self._hooks.watch(model, work.weights, self.fit)

    def remove(self, work: Work) -> None:
        self._hooks.remove()
        for weight in work.weights:
            self._fit(weight, sampled=False)

    def fit(self, weights: Sequence[Weight]) -> None:
        """Put what the modules of these weights compute with in their mode into the parameters."""
        for weight in weights if self._step and not self._inside else ():
            self._fit(weight, sampled=weight.module.training)

    def _fit(self, weight: Weight, *, sampled: bool) -> None:
        """Put the sample of the step or the deterministic weights into a parameter, if they do not stand there."""
        shown = self._shown[weight.name]
        if weight.slots and (sampled is not shown.sampled or not shown.version):
            self._take_changes(weight)
            self._show(weight, sampled=sampled)

    def _show(self, weight: Weight, *, sampled: bool) -> None:
        """Put the sample of the step or the deterministic weights into a parameter."""
        weight.local.copy_(self._values(weight, self._noise_of(weight) if sampled else None))
        self._shown[weight.name] = Shown(sampled, _version(weight))

    def _values(self, weight: Weight, noise: Tensor | None) -> Tensor:
        if not self._step:
            return weight.slots["theta"]
        values = self.run(self.computed, wide(weight.slots["theta"]), weight.slots["latent"], noise)
        return _zeroed(values.to(weight.local.dtype), weight)

    def _noise_of(self, weight: Weight) -> Tensor | None:
        """The noise of this step, computed once. A weight that has some was trained with it in this step, also if the
        network was evaluated since."""
        if weight.name not in self._noise and (noise := self.noise(weight, self._step)) is not None:
            self._noise[weight.name] = noise
        return self._noise.get(weight.name)

    def _take_changes(self, weight: Weight) -> None:
        """If something other than a step has changed a weight, train on from there."""
        version = self._shown[weight.name].version
        if _version(weight) != version:
            differs = torch.ne if version else _clearly_differs
            changed = differs(weight.local, self._values(weight, None))
            if (noise := self.noise(weight, self._step)) is not None:  # a state may have been saved after a call
                changed &= differs(weight.local, self._values(weight, noise))
            weight.slots["theta"].copy_(torch.where(changed, weight.local, weight.slots["theta"]))

    def trained(self, weight: Weight) -> Tensor:
        return weight.local if self._inside or not weight.slots else weight.slots["theta"]

    def enter(self, work: Work) -> None:
        if self._inside or not work.weights[0].slots:
            return
        for weight in work.weights:
            self._take_changes(weight)
        self._inside = True
        for weight in work.weights:
            weight.local.copy_(weight.slots["theta"])

    def gradients(self, work: Work, step: int, scale: Tensor | float) -> None:
        self._warn_without_sample(work)
        for weight in work.weights:
            if weight.slots and (grad := weight.grad) is not None and grad.numel():
                factor = scale.to(grad.device) if isinstance(scale, Tensor) else scale
                factor = -factor if group_of(work.optimizer, weight.parameter).get("maximize") else factor
                at_values = _zeroed(wide(grad), weight)
                scaled = isinstance(factor, Tensor) or factor != 1
                at_values = at_values / factor if scaled else at_values
                plain = self.noisy and not step  # the network has computed with theta itself
                own, latent = self.run(
                    self.backward,
                    wide(weight.slots["theta"]),
                    weight.slots["latent"],
                    self._noise.get(weight.name),
                    torch.zeros_like(at_values) if plain else at_values,
                    torch.full((), self.penalty_weight(step), dtype=at_values.dtype, device=grad.device),
                )
                own = own + at_values if plain else own
                grad.copy_(own * factor if scaled else own)
                self._gradients[weight.name] = latent
        super().gradients(work, step, scale)

    def settle(self, work: Work, step: int) -> None:
        super().settle(work, step)
        for weight in work.weights:
            if weight.slots:
                weight.slots["theta"].copy_(weight.local)
                if weight.name in self._gradients:
                    self.update(weight, weight.slots["latent"], self._gradients[weight.name], step)
        self._step, self._inside = step, False
        self._gradients.clear()
        self._noise.clear()
        for weight in work.weights:
            if weight.slots:
                self._show(weight, sampled=False)
        self.settled([weight for weight in work.weights if weight.slots])

    def settled(self, weights: Sequence[Weight]) -> None:
        """Called after each update of the weights and the latents, with the deterministic weights in the parameters."""

    def leave(self, work: Work) -> None:
        if self._inside:
            self._inside = False
            self._gradients.clear()
            for weight in work.weights:
                self._show(weight, sampled=self._shown[weight.name].sampled)

    def _warn_without_sample(self, work: Work) -> None:
        missed = [w.name for w in work.weights if w.slots and w.module.training and w.name not in self._noise]
        if self.noisy and self._step and missed and not self._warned:
            self._warned = True
            warn(
                f"{missed[0]} was trained without noise, because no call of its module was seen. Call the module that "
                "the pruner was attached to, or a layer of it: the compiled one if you compile it, and not through "
                "torch.func.functional_call",
                NoSampleWarning,
            )

    # In an event.

    def apply(self, work: Work, selection: Selection) -> None:
        super().apply(work, selection)
        for weight in work.weights:
            if weight.slots:
                zero_pruned(weight.slots["theta"], weight.bytes)

    def freeze(self, work: Work) -> None:
        """After the last event: forget the latents, and train plain weights from then on."""
        if self._step >= self._last and work.weights[0].slots:
            for weight in work.weights:
                values = self.folded(wide(weight.slots["theta"]), weight.slots["latent"])
                weight.local.copy_(masked(values.to(weight.local.dtype), weight.bytes))
                weight.slots.clear()
            self._hooks.remove()
            work.forget()

    # In a state.

    def saved(self, weight: Weight) -> dict[str, Tensor]:
        return weight.slots or {key: torch.zeros_like(slot) for key, slot in self.slots(weight).items()}

    def load(self, work: Work, saved: Mapping[str, Mapping[str, Tensor]], step: int, events: int) -> None:
        self._step, self._kernels = step, work.kernels
        self._noise.clear()
        self._numbers.clear()
        self._hooks.remove()
        for weight in work.weights:
            weight.slots.clear()
            if events < self._planned:  # one that is due ranks latents, too
                weight.slots.update(self.slots(weight))
            self._shown[weight.name] = Shown()
        work.forget()
        super().load(work, saved, step, events)


@in_c(latent_loops.adam)
def adam(latent: Tensor, grad: Tensor, first: Tensor, second: Tensor, rate: float, step: int) -> None:
    """A step of Adam, in place."""
    first.lerp_(grad, 0.1)
    second.mul_(0.999).addcmul_(grad, grad, value=0.001)
    size = (second / (1 - 0.999**step)).sqrt_().add_(1e-8)
    latent.addcdiv_(first, size, value=-rate / (1 - 0.9**step))


def _zeroed(tensor: Tensor, weight: Weight) -> Tensor:
    """The tensor, with zeros where a weight is pruned, in place."""
    if not weight.dense:
        zero_in_place(tensor, weight.bytes)
    return tensor


def _clearly_differs(one: Tensor, other: Tensor) -> Tensor:
    """Where weights differ by more than rounding. On another machine, with or without loops in C, exponentials and
    logarithms have other last bits."""
    rounding = max(NEARLY, 2 * torch.finfo(one.dtype).eps)
    return ~torch.isclose(one, other, rtol=rounding, atol=NEARLY / 100)


def _version(weight: Weight) -> tuple[int, ...]:
    return weight.view.version(weight.parameter)
