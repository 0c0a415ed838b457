"""Compare the outputs of two networks."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

MIN_SCALE = 1e-3
"""The tolerance is relative to the size of the outputs, but never to less than this."""


def output_leaves(output: Any) -> list[Any]:
    """Return all leaves of an output that may be nested in tuples, dictionaries and dataclasses."""
    found: list[Any] = []
    for leaf in pytree.tree_leaves(output):
        if dataclasses.is_dataclass(leaf):
            found += output_leaves({field.name: getattr(leaf, field.name) for field in dataclasses.fields(leaf)})
        else:
            found.append(leaf)
    return found


def coarsest_epsilon(output: Any) -> float:
    """Return the largest machine epsilon among the floating-point tensors of an output."""
    floats = (each for each in output_leaves(output) if isinstance(each, Tensor) and each.is_floating_point())
    return max((torch.finfo(each.dtype).eps for each in floats), default=torch.finfo(torch.float64).eps)


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
