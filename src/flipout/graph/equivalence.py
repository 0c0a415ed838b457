"""Verify that a compacted network computes the same as the original."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import torch
from torch import Tensor, nn

from .comparison import coarsest_epsilon, describe_difference
from .example_inputs import batch_size, inputs_like
from .tracing_errors import UnsupportedNetworkError, first_line


class EquivalenceCheck:
    """The outputs of a network on the example, on random inputs and on another batch size, to compare others with.

    Args:
        model: the network.
        example: what it is called with. `self.example` has a batch of at least two, where the network accepts that.
    """

    def __init__(self, model: nn.Module, example: tuple[Tensor, ...]) -> None:
        self.model, self.example = model, example
        self.expected = [(example, _run(model, example))]
        if example[0].shape[:1] == (1,):
            twice = tuple(torch.cat([each, each]) if each.ndim else each for each in example)
            if self._add(twice):
                self.example = twice  # with a batch of one, any axis of size 1 could be taken for the batch
        self._add(tuple(torch.randn_like(each) if each.is_floating_point() else each for each in example))
        with contextlib.suppress(ValueError, IndexError):
            self._add(inputs_like(example, batch_size(example) + 2))

    def _add(self, inputs: tuple[Tensor, ...]) -> bool:
        """Record the outputs for these inputs; return whether the network accepts them."""
        try:
            self.expected.append((inputs, _run(self.model, inputs)))
        except Exception:  # the user's code may reject the inputs with any error
            return False
        return True

    def verify(self, model: nn.Module) -> None:
        """Raise an error if another network has different outputs."""
        for inputs, expected in self.expected:
            tolerance = coarsest_epsilon(expected) ** 0.4  # 5e-7 in float64
            try:
                difference = describe_difference(expected, _run(model, inputs), tolerance, global_share=1e-3)
            except Exception as error:  # the compacted network may not run at all
                raise UnsupportedNetworkError(f"the compacted network failed ({first_line(error)})") from error
            if difference:
                raise UnsupportedNetworkError(f"the compacted network has different outputs ({difference})")


@torch.no_grad()
def _run(model: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # some networks draw random numbers even in evaluation mode
        return model(*copy.deepcopy(inputs))
