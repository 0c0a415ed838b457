"""What depends on the input of a recorded network, and what its output depends on.

Each tensor has marks: numbers that broadcast to its shape, 1 for the elements that depend on the input, and 0 for the
others. A dimension along which all elements are alike has size one. Every operation computes the marks of its result
from those of its arguments: a sum stands for "or", and the product with the mask of a weight for "and". So autograd
knows the way back: an element has a gradient if the output depends on it, and a weight has one if it lies on a path
from the input to the output. The rules are in `rules/marks.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ..modules import plain_name
from .labels import Factors, Labels, Value
from .propagation import Propagation, Result, tensors_in
from .record import Recording
from .rules.marks import flow_rule

Numbers = Callable[[fx.Node], Any]
"""The value of a node for the example; None if it is not known."""


class Flow(Propagation):
    """The marks of all tensors of a network.

    Args:
        masks: for some weights, by name, where they are not zero: a tensor of two dimensions or more, of which only the
            first two count.
        numbers: the values of tensors. With them a product with a constant 0 is 0, whatever the other factor is.
    """

    def __init__(self, masks: Mapping[str, Tensor], numbers: Numbers = lambda node: None) -> None:
        super().__init__(labels=_Marks())
        self.masks = {name: connections(mask).float().requires_grad_() for name, mask in masks.items()}
        self.numbers = numbers

    @torch.enable_grad()
    def live(self, recording: Recording) -> dict[str, Tensor]:
        """For each mask, which weights would lie on a path from the input to the output."""
        inputs = [self._input(node, recording.tensors) for node in recording.graph.find_nodes(op="placeholder")]
        return self.behind(tensors_in(self.run_graph(recording.module, inputs, flow_rule)))

    def behind(self, outputs: Sequence[Value]) -> dict[str, Tensor]:
        """For each mask, which weights would lie on a path from the input to some tensors."""
        marks = [each.sum() for value in outputs for each in value.factors if each.requires_grad]
        leaves = list(self.masks.values())
        gradients = torch.autograd.grad(marks, leaves, allow_unused=True) if marks else [None] * len(leaves)
        return {
            name: torch.zeros_like(mask, dtype=torch.bool) if each is None else each > 0
            for (name, mask), each in zip(self.masks.items(), gradients, strict=True)
        }

    def _input(self, node: fx.Node, names: Mapping[fx.Node, str]) -> Result:
        meta, name = node.meta.get("val"), names.get(node)
        if not isinstance(meta, Tensor):
            return None
        mask = self.masks.get(plain_name(name or ""))
        return Value(tuple(map(int, meta.shape)), () if mask is None else (mask,), name)

    def _note_joint(self, result: Result) -> None:
        """Marks may depend on any dimensions."""


def connections(mask: Tensor) -> Tensor:
    """Between which of its channels a weight has something: a mask in which the other dimensions have size one."""
    if mask.ndim < 3:
        return mask
    # A maximum of bytes: torch reduces booleans several times more slowly.
    return mask.view(torch.uint8).flatten(2).amax(2).view(torch.bool)[(..., *(None,) * (mask.ndim - 2))]


class _Marks(Labels):
    """Marks in place of labels, for rules that move them: those that can no longer be distinguished are added."""

    def collapse(self, factors: Iterable[Tensor], dims: Iterable[int], reason: str) -> Factors:
        return tuple(self.joined(each, dims) for each in factors)

    def joined(self, factor: Tensor, dims: Iterable[int]) -> Tensor:
        dims = list(dims)
        return factor.sum(dims, keepdim=True) if dims else factor

    def compressed(self, factors: Iterable[Tensor]) -> Factors:
        return tuple(factors)

    def tie(self, one: Tensor, other: Tensor, reason: str = "") -> None:
        """Nothing is tied."""

    def fix(self, labels: Tensor, reason: str) -> None:
        """Nothing is fixed."""
