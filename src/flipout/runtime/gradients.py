"""What stands in `.grad` between the backward pass and the step: the gradients that the network depends on.

Gradient clipping, logging and everything else that looks at `.grad` must see what the optimizer uses. So the gradient
of a pruned weight is 0, or, if hidden values or a statistic learn from it, it is *faint*: multiplied with 2^-90 as the
backward pass computes it, and multiplied back, exactly, inside the step. A faint number is lost in any norm and below
any limit, but sums of micro-batches, the factor of a gradient scaler and that of clipping act on it like on all others.
Something else may write an ordinary number into its place, such as gradient centralization: that is used as it is.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from ..numerics import kept
from ..problems import LostGradientsWarning, warn
from ..views.dtensors import has_layout_of, local_of
from ..weights import Weight
from .compiler import never_traced
from .groups import zero_in_place

FAINT, LIMIT = 2.0**-90, 2.0**-66
"""What gradients of pruned weights are multiplied with, and the size from which on a number is not faint: that of a
gradient of 2^24. (The smallest float32 with all of its bits is 2^-126, a faint gradient of 1.5e-11.)"""

LOST = (
    "the gradients of pruned weights, which something learns from, did not reach the step: they are 0 "
    "or overwritten. They are small numbers until the step (times 2^-90), and something between backward() and step() "
    "has lost them, such as a communication hook of DistributedDataParallel that compresses gradients. Use one that "
    "keeps the range of float32, such as bf16_compress_hook, or prune permanently with second_chances=None"
)

Held = tuple[weakref.ref[Tensor], Tensor]
"""A gradient, and what is held aside for it."""


class Gradients:
    """Masks the gradients of pruned weights, or makes them faint, as the backward pass accumulates them.

    Under data parallelism this happens before the ranks exchange their gradients: the masks are equal on all ranks, so
    the averages are masked too.

    Args:
        weights: the weights of a pruner.
        learned: whether something learns from the gradients of pruned weights of a weight tensor at the moment. It must
            not keep the pruner alive.
    """

    def __init__(self, weights: Sequence[Weight], learned: Callable[[Weight], bool]) -> None:
        handles: list[RemovableHandle] = []
        self._faint: weakref.WeakSet[Weight] = weakref.WeakSet()
        self._held: weakref.WeakKeyDictionary[Weight, Held] = weakref.WeakKeyDictionary()
        self._sent: list[Tensor] = []  # whether backward passes had faint numbers
        self._arrived = False  # in a step
        self._nodes: list[Node] = []  # torch keeps them for as long as somebody else does
        for weight in weights:
            on_backward, on_accumulated = self._hooks_of(weight, learned)
            self._nodes.append(_accumulation(weight.parameter))
            handles.append(self._nodes[-1].register_prehook(on_backward))
            handles.append(weight.parameter.register_post_accumulate_grad_hook(on_accumulated))  # type: ignore[no-untyped-call]
        self._finalizer = weakref.finalize(self, _remove, handles)  # a dropped pruner leaves no hooks in the model

    def remove(self) -> None:
        self._finalizer()

    def factor(self, weight: Weight) -> float:
        """What faint gradients in `.grad` have to be multiplied with; 1 if there are none."""
        return 1 / FAINT if weight in self._faint else 1.0

    def full(self, weight: Weight) -> Tensor | None:
        """The gradient as the backward pass has computed it, pruned weights included."""
        grad = weight.grad
        if grad is None or weight not in self._faint:
            return grad
        return torch.where(weight.mask | (grad.abs() >= LIMIT), grad, grad / FAINT)

    def complete(self) -> None:
        """Called before a step: put back what was held aside in a type without room for faint numbers."""
        for weight in self._held:
            held, grad = self._held_for(weight), weight.grad
            if held is not None and grad is not None and weight not in self._faint:
                grad.add_(held)
        if not self._arrived:
            self._look_for_faint_numbers()

    def _look_for_faint_numbers(self) -> None:
        """Warn if nothing is left of faint gradients in the first step after a backward pass that had some.

        (Shards have none before the ranks have exchanged their gradients.)
        """
        pairs = [(weight.grad, weight.mask) for weight in self._faint if weight.view.key is None]
        found = [((grad != 0) & (grad.abs() < LIMIT) & ~mask).any() for grad, mask in pairs if grad is not None]
        if not found or not self._sent:
            return
        marks = [torch.stack([each.to(found[0].device) for each in flags]).any() for flags in (self._sent, found)]
        self._arrived, arrived = torch.stack(marks).tolist()  # waits for the device once
        self._sent.clear()
        if self._arrived and not arrived:
            warn(LOST, LostGradientsWarning)

    def done(self) -> None:
        """Called after a step: the next backward pass starts anew."""
        self._faint.clear()
        self._held.clear()

    def _held_for(self, weight: Weight) -> Tensor | None:
        """What is held aside for the gradient of a weight. It is void if `zero_grad()` has dropped that gradient."""
        owner, held = self._held.get(weight, (lambda: None, None))
        return held if owner() is weight.parameter.grad else None

    def _hooks_of(
        self, weight: Weight, learned: Callable[[Weight], bool]
    ) -> tuple[Callable[[Sequence[Tensor]], tuple[Tensor] | None], Callable[[Tensor], None]]:
        """The hooks of a weight: on the gradient of one backward pass before it is added, and on the sum of them.

        They must not keep the weight alive, because the parameter may outlive the pruner. What `torch.autograd.grad`
        returns, and what hooks on tensors see, is the gradient as it is.
        """
        this, reference = weakref.ref(self), weakref.ref(weight)

        @never_traced
        def on_backward(grads: Sequence[Tensor]) -> tuple[Tensor] | None:
            (grad,), weight, gradients = grads, reference(), this()
            if (
                weight is None
                or gradients is None
                or weight.dense
                or not learned(weight)
                or not _is_plain(weight, grad)
            ):
                return None
            gradients._faint.add(weight)
            mask = weight.view.shown(weight.mask)
            fainter = faint(grad, mask)  # with a graph if the backward pass makes one
            if not gradients._arrived:
                gradients._sent.append((fainter.detach().masked_fill(mask, 0) != 0).any())
            return (fainter,)

        @never_traced
        def on_accumulated(parameter: Tensor) -> None:
            weight, gradients, grad = reference(), this(), parameter.grad
            if weight is None or gradients is None or grad is None or grad.layout != torch.strided or weight.dense:
                return  # (a sparse gradient is refused inside the step)
            if not has_layout_of(parameter, grad):
                return  # it is brought into the layout of the weight inside the step
            with torch.no_grad():
                mask, local = local_of(weight.view.shown(weight.mask)), local_of(grad)
                if learned(weight) and local.dtype == torch.float16:
                    aside, held = torch.where(mask, 0, local.float()), gradients._held_for(weight)
                    gradients._held[weight] = weakref.ref(grad), aside if held is None else held + aside
                if not learned(weight) or local.dtype == torch.float16:
                    zero_in_place(local, mask.view(torch.uint8))
                elif weight not in gradients._faint or weight in gradients._held:
                    # FSDP2 sets the gradient of a shard without a backward pass through it, and a parameter that was
                    # moved has another node: what came before stands in it as a faint number, which is lost in the new
                    # one.
                    total, held = faint(local, mask), gradients._held_for(weight)
                    if held is not None:
                        total = torch.where(mask, total, total + held)
                    local.copy_(total)
                    gradients._held[weight] = weakref.ref(grad), total
                    gradients._faint.add(weight)

        return on_backward, on_accumulated


def faint(grad: Tensor, mask: Tensor) -> Tensor:
    """The gradient, with that of pruned weights multiplied with 2^-90."""
    return torch.where(mask, grad, grad * FAINT)


def restored(grad: Tensor, mask: Tensor, faint: Tensor, ordinary: Tensor) -> Tensor:
    """The gradient, with that of pruned weights multiplied with a factor for faint numbers or one for all others; 0
    where that is not finite.

    The network does not depend on a pruned weight, so an overflow there is no reason to stop.
    """
    more = grad * torch.where(grad.abs() < LIMIT, faint, ordinary)
    return torch.where(kept(mask), grad, torch.where(more.abs() < torch.inf, more, 0))


def _accumulation(parameter: Tensor) -> Node:
    """The node of torch's graph that adds to the gradient of a parameter."""
    with torch.enable_grad():
        view = parameter.view_as(parameter).grad_fn
    assert view is not None
    node = view.next_functions[0][0]
    assert node is not None
    return node


def _is_plain(weight: Weight, grad: Tensor) -> bool:
    """Whether a gradient can be made faint in a backward pass: that of an ordinary weight, in a type with the range."""
    return weight.view.key is None and grad.layout == torch.strided and grad.dtype != torch.float16


def _remove(handles: Iterable[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
