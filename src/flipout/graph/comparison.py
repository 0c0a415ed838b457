"""What a network is called with, what comes out of it, and whether two networks give the same."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..layers import unwrapped
from .tracing_errors import first_line

Example = Tensor | tuple[Tensor, ...]

SMALL = 1e-3
"""Outputs below this are held to what is allowed to one of this size."""


def as_example(example_input: Example) -> tuple[Tensor, ...]:
    """The arguments of a call; a tensor alone is the only one."""
    example = example_input if isinstance(example_input, tuple) else (example_input,)
    for each in example:
        if not isinstance(each, Tensor):
            raise TypeError(
                f"example_input has a {type(each).__name__} in it: give a tensor, or a tuple of the tensors that the "
                "network is called with"
            )
    return tuple(each.detach() for each in example)


def own_copy(model: nn.Module) -> nn.Module:
    """A copy in evaluation mode, without what DataParallel or torch.compile put around it."""
    network = unwrapped(model)
    try:
        return copy.deepcopy(network).eval()
    except RuntimeError as error:
        raise ValueError(
            f"{type(network).__name__} cannot be copied ({first_line(error)}); if it was pruned with "
            "torch.nn.utils.prune, make that permanent first, with torch.nn.utils.prune.remove"
        ) from error


def batch_of(example: tuple[Tensor, ...]) -> int:
    """The size of the first axis of all inputs."""
    sizes = {each.shape[:1] for each in example}
    if len(sizes) != 1 or not min(sizes):
        raise ValueError("the first axis of every input must be the batch, and the examples do not agree on its size")
    return min(sizes)[0]


def inputs_like(example: tuple[Tensor, ...], batch: int) -> tuple[Tensor, ...]:
    """Inputs of another batch size: random numbers, or rows of the example where it holds no real numbers."""
    batch_of(example)
    generator = torch.Generator().manual_seed(0)

    def like(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            return torch.randn(batch, *tensor.shape[1:], generator=generator).to(tensor)
        return tensor[torch.randint(len(tensor), (batch,), generator=generator)]

    return tuple(like(tensor) for tensor in example)


def leaves(output: Any) -> list[Any]:
    """Everything that a network gives, out of tuples, dictionaries and dataclasses."""
    found: list[Any] = []
    for leaf in pytree.tree_leaves(output):
        if dataclasses.is_dataclass(leaf):
            found += leaves({field.name: getattr(leaf, field.name) for field in dataclasses.fields(leaf)})
        else:
            found.append(leaf)
    return found


def precision(output: Any) -> float:
    """The coarsest rounding among real outputs: the step from 1 to the next number."""
    real = (each for each in leaves(output) if isinstance(each, Tensor) and each.is_floating_point())
    return max((torch.finfo(each.dtype).eps for each in real), default=torch.finfo(torch.float64).eps)


@torch.no_grad()
def unlike(expected: Any, found: Any, tolerance: float, *, shared: float = 0.1) -> str | None:
    """How outputs differ by more than rounding, None if they do not.

    A number may be off by `tolerance` times the largest of its kind, which is what stands in its place for any example
    of the batch, or times `shared` of the largest of all.
    """
    ours, theirs = leaves(expected), leaves(found)
    if len(ours) != len(theirs):
        return f"there are {len(theirs)} of them instead of {len(ours)}"
    return next(filter(None, (_unlike(*pair, tolerance, shared) for pair in zip(ours, theirs, strict=True))), None)


def _unlike(expected: Any, found: Any, tolerance: float, shared: float) -> str | None:
    if not isinstance(expected, Tensor) or not isinstance(found, Tensor):
        alike = isinstance(expected, Tensor) == isinstance(found, Tensor) and expected == found
        return None if alike else f"one is {found!r} instead of {expected!r}"
    if expected.shape != found.shape:
        return f"one has the shape {tuple(found.shape)} instead of {tuple(expected.shape)}"
    if expected.dtype != found.dtype:
        return f"one is of {found.dtype} instead of {expected.dtype}"
    if expected.is_complex():
        expected, found = torch.view_as_real(expected), torch.view_as_real(found)
    if not expected.is_floating_point() or not expected.numel():
        return None if torch.equal(expected, found) else f"{int((expected != found).sum())} of them"
    expected, found = expected.double(), found.double()
    sizes = expected.abs().nan_to_num(0.0, 0.0, 0.0)
    largest = float(sizes.max())
    kind = sizes.amax(0, keepdim=True) if sizes.ndim else sizes
    bound = tolerance * kind.clamp(min=max(shared * largest, SMALL))
    off = (expected - found).abs()
    fine = (off <= bound) | (expected == found) | (expected.isnan() & found.isnan())
    return None if fine.all() else f"by {float(off[~fine].max()):.1e}, where they are up to {largest:.1e}"


@torch.no_grad()
def distance(expected: Any, found: Any) -> float:
    """The largest difference between finite outputs."""
    worst = 0.0
    for ours, theirs in zip(leaves(expected), leaves(found), strict=True):
        if isinstance(ours, Tensor) and ours.numel():
            kind = torch.complex128 if ours.is_complex() else torch.float64
            worst = max(worst, float((ours.to(kind) - theirs.to(kind)).abs().nan_to_num(0.0, 0.0, 0.0).max()))
    return worst
