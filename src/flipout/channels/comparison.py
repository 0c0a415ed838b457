"""Run networks on examples, and compare what they compute."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Example = Tensor | tuple[Tensor, ...]
"""The inputs of a network: one tensor, or a tuple of all positional arguments."""
NamedExample = Example | Mapping[str, Tensor]
"""The same, or a dictionary of all arguments by name."""
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""The positional and the keyword arguments of a call."""
MIN_SCALE = 1e-3
"""The tolerance is relative to the size of the outputs, but never to less than this."""


def as_example(example_input: Example) -> tuple[Tensor, ...]:
    """Return the positional arguments of a call as a tuple of detached tensors."""
    if isinstance(example_input, Mapping):
        raise TypeError(
            "example_input is a dictionary, and here inputs are passed by position: pass a tensor, or a tuple of the "
            "tensors that the network is called with. If it takes some of them only by name, pass a module whose "
            "forward(first, second, ...) calls it"
        )
    example = example_input if isinstance(example_input, tuple) else (example_input,)
    for each in example:
        if not isinstance(each, Tensor):
            raise TypeError(
                f"example_input contains a {type(each).__name__}: pass a tensor, or a tuple of the tensors that the "
                "network is called with"
            )
    return tuple(each.detach() for each in example)


def as_arguments(example_input: NamedExample) -> Arguments:
    """Return the positional and the keyword arguments of a call. A dictionary has all arguments by name."""
    if isinstance(example_input, Mapping):
        for name, each in example_input.items():
            if not isinstance(each, Tensor):
                raise TypeError(
                    f"example_input[{name!r}] is a {type(each).__name__}: pass only the arguments that are tensors. If "
                    "the network has to be called with another value than the default, pass a module whose forward "
                    "calls it so"
                )
        return (), dict(zip(example_input, as_example(tuple(example_input.values())), strict=True))
    return as_example(example_input), {}


def tensors_of(tree: Any) -> tuple[Tensor, ...]:
    """All tensors in tuples, lists and dictionaries, such as the arguments of a call."""
    return tuple(leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor))


def examples_in(arguments: Arguments) -> int:
    """The size of the first axis of the first tensor that has one: how many examples are in a batch."""
    return next((len(each) for each in tensors_of(arguments) if each.ndim), 1)


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


def output_leaves(output: Any) -> list[Any]:
    """Return all leaves of an output that may be nested in tuples, dictionaries and dataclasses."""
    found: list[Any] = []
    for leaf in pytree.tree_leaves(output):
        if dataclasses.is_dataclass(leaf):
            found += output_leaves({field.name: getattr(leaf, field.name) for field in dataclasses.fields(leaf)})
        else:
            found.append(leaf)
    return found


def output_tensors(output: Any) -> tuple[Tensor, ...]:
    """Return all tensors of an output."""
    return tuple(leaf for leaf in output_leaves(output) if isinstance(leaf, Tensor))


def coarsest_epsilon(output: Any) -> float:
    """Return the largest machine epsilon among the floating-point tensors of an output."""
    floats = (each.dtype for each in output_tensors(output) if each.is_floating_point())
    return max((torch.finfo(dtype).eps for dtype in floats), default=torch.finfo(torch.float64).eps)


@torch.no_grad()
def describe_difference(expected: Any, found: Any, tolerance: float, *, global_share: float = 0.1) -> str | None:
    """Describe how two outputs differ by more than rounding; return None if they do not.

    An element may differ by `tolerance` times its scale. The scale is the largest absolute value at the same position
    over the batch, or `global_share` times the largest absolute value of the whole tensor, whichever is larger.
    """
    ours, theirs = output_leaves(expected), output_leaves(found)
    if len(ours) != len(theirs):
        return f"{len(theirs)} outputs instead of {len(ours)}"
    differences = (_leaf_difference(*pair, tolerance, global_share) for pair in zip(ours, theirs, strict=True))
    return next(filter(None, differences), None)


def _leaf_difference(expected: Any, found: Any, tolerance: float, global_share: float) -> str | None:
    if not isinstance(expected, Tensor) or not isinstance(found, Tensor):
        equal = isinstance(expected, Tensor) == isinstance(found, Tensor) and expected == found
        return None if equal else f"{found!r} instead of {expected!r}"
    if expected.shape != found.shape:
        return f"shape {tuple(found.shape)} instead of {tuple(expected.shape)}"
    if expected.dtype != found.dtype:
        return f"{found.dtype} instead of {expected.dtype}"
    if expected.is_complex():
        expected, found = torch.view_as_real(expected), torch.view_as_real(found)
    if not expected.is_floating_point() or not expected.numel():
        return None if torch.equal(expected, found) else f"{int((expected != found).sum())} elements differ"
    expected, found = expected.double(), found.double()
    sizes = expected.abs().nan_to_num(0.0, 0.0, 0.0)
    largest = float(sizes.max())
    scale = sizes.amax(0, keepdim=True) if sizes.ndim else sizes
    bound = tolerance * scale.clamp(min=max(global_share * largest, MIN_SCALE))
    error = (expected - found).abs()
    equal = (error <= bound) | (expected == found) | (expected.isnan() & found.isnan())
    if equal.all():
        return None
    return f"off by {float(error[~equal].max()):.1e}, where the largest value is {largest:.1e}"


@torch.no_grad()
def largest_difference(expected: Any, found: Any) -> float:
    """Return the largest absolute difference between finite elements of two outputs."""
    largest = 0.0
    for ours, theirs in zip(output_leaves(expected), output_leaves(found), strict=True):
        if isinstance(ours, Tensor) and ours.numel():
            dtype = torch.complex128 if ours.is_complex() else torch.float64
            largest = max(largest, float((ours.to(dtype) - theirs.to(dtype)).abs().nan_to_num(0.0, 0.0, 0.0).max()))
    return largest
