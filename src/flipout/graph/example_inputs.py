"""Example inputs of a network."""

from __future__ import annotations

import torch
from torch import Tensor

Example = Tensor | tuple[Tensor, ...]
"""The inputs of a network: one tensor, or a tuple of all positional arguments."""


def as_example(example_input: Example) -> tuple[Tensor, ...]:
    """Return the positional arguments of a call as a tuple of detached tensors."""
    example = example_input if isinstance(example_input, tuple) else (example_input,)
    for each in example:
        if not isinstance(each, Tensor):
            raise TypeError(
                f"example_input contains a {type(each).__name__}: pass a tensor, or a tuple of the tensors that the "
                "network is called with"
            )
    return tuple(each.detach() for each in example)


def batch_size(example: tuple[Tensor, ...]) -> int:
    """Return the size of the first axis, which all inputs must share."""
    sizes = {each.shape[:1] for each in example}
    if len(sizes) != 1 or not min(sizes):
        raise ValueError("the first axis of every input must be the batch, but its size differs between the inputs")
    return min(sizes)[0]


def inputs_like(example: tuple[Tensor, ...], batch: int) -> tuple[Tensor, ...]:
    """Return inputs with another batch size: random numbers, or random rows of the example for non-float tensors."""
    batch_size(example)
    generator = torch.Generator().manual_seed(0)

    def like(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            return torch.randn(batch, *tensor.shape[1:], generator=generator).to(tensor)
        return tensor[torch.randint(len(tensor), (batch,), generator=generator)]

    return tuple(like(tensor) for tensor in example)
