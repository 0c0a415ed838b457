"""The loops around an optimizer step in C: what a pruner does with every weight, each in one pass over memory.

Each function here computes what a function of the same arguments computes with torch. `in_c` connects the two. They are
for contiguous float32 tensors on the CPU: `fits` says whether tensors are. `latent_loops.py` has those of latent forms.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref
from typing import Any, TypeVar

import torch
from torch import Tensor

from .library import Step, find_kernels, kernels

LOOPS = (
    *("zero", "count", "enter", "leave", "limit", "scale", "square", "perturb"),
    *("normal", "uniform", "adam", "variational", "variational_backward"),
    *("gate", "gate_backward", "threshold", "threshold_backward"),
)
NUMBERS = {name: number for number, name in enumerate(LOOPS)}
"""The loops of c/step.h, in its order."""

WORK_OF_A_THREAD = 1 << 15
"""The elements for which another thread is worth it."""

Function = TypeVar("Function", bound=Callable[..., Any])


def in_c(loop: Callable[..., Any]) -> Callable[[Function], Function]:
    """Declare the loop in C that computes the same as a function, from the same arguments."""

    def declare(function: Function) -> Function:
        function.in_c = loop  # type: ignore[attr-defined]
        return function

    return declare


def loop_of(function: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """The loop in C that was declared for a function, or None."""
    return getattr(function, "in_c", None)


def available() -> bool:
    """Whether the package was built with a compiler."""
    return find_kernels() is not None


def fits(*tensors: Tensor) -> bool:
    """Whether loops in C can work on tensors."""
    return all(
        tensor.device.type == "cpu"
        and tensor.dtype in (torch.float32, torch.uint8, torch.int32)
        and tensor.is_contiguous()
        for tensor in tensors
    )


def zero_pruned(tensor: Tensor, mask: Tensor) -> None:
    run("zero", tensor, values=tensor, mask=mask)


def count_changes(
    weight: Tensor, mask: Tensor, low: Tensor, high: Tensor, *, amount: int = 1, fade: int = 0, **more: Any
) -> None:
    """`fade` is a factor in units of 1/65,536; 0 is none. `more` are fields of `Step`: see `count_then`."""
    run("count", weight, values=weight, mask=mask, low=low, high=high, amount=amount, fade=fade, **more)


def count_then(
    count: Callable[..., None], last: Callable[..., None], weight: Tensor, mask: Tensor, *tensors: Tensor, every: bool
) -> None:
    """Count flips, and then zero pruned weights or leave hidden values, in one loop.

    Args:
        count: `count_changes`, or a partial of it.
        last: `zero_pruned` or `leave`.
        weight: the weights.
        mask: what is kept.
        *tensors: the slots of `leave`, and then the state of the counts.
        every: whether pruned weights count, too.
    """
    *slots, low, high = tensors
    more: dict[str, Any] = {"zeroes": last is zero_pruned, "all_count": every}
    if slots:
        hidden, threshold, ceiling = slots
        more |= {"hidden": hidden, "threshold": threshold, "ceiling": ceiling, "each": threshold.ndim > 0}
    count(weight, mask, low, high, **more)


def enter(weight: Tensor, mask: Tensor, values: Tensor, threshold: Tensor, ceiling: Tensor) -> None:
    run("enter", weight, values=weight, mask=mask, hidden=values, threshold=threshold, each=threshold.ndim > 0)


def leave(weight: Tensor, mask: Tensor, values: Tensor, threshold: Tensor, ceiling: Tensor) -> None:
    limits = {"threshold": threshold, "ceiling": ceiling, "each": threshold.ndim > 0}
    run("leave", weight, values=weight, mask=mask, hidden=values, **limits)


def limit_gradient(
    weight: Tensor, grad: Tensor, mask: Tensor, faint: Tensor, rate: Tensor, trust: Tensor, factor: Tensor
) -> None:
    numbers = {"faint": faint, "each": faint.ndim > 0, "rate": rate.item(), "trust": trust.item()}
    factors = {"unit_factors": factor} if factor.ndim else {"one_unit_factor": factor.item()}
    run("limit", weight, values=weight, gradients=grad, mask=mask, **numbers, **factors)


def scale_pruned(grad: Tensor, mask: Tensor, faint: Tensor, rate: Tensor) -> None:
    run("scale", grad, gradients=grad, mask=mask, faint=faint, each=faint.ndim > 0, rate=rate.item())


def squares_of_rows(relative: Tensor, mask: Tensor) -> Tensor:
    sums = relative.new_empty(len(relative))
    run("square", relative, values=relative, mask=mask, sums=sums)
    return sums


def sum_of_squares(relative: Tensor, mask: Tensor) -> float:
    """The sum of the squares of all that is kept."""
    sums = relative.new_empty(len(relative))
    return float(run("square", relative, values=relative, mask=mask, sums=sums).total)


def perturb_by(
    grad: Tensor,
    mask: Tensor,
    starts: Tensor,
    offsets: Tensor,
    factor: int | Tensor,
    addend: int | Tensor,
    sigma: float | Tensor,
    pruned: str,
) -> None:
    """The factor, the addend and sigma are numbers for each row, or one for all."""
    fields: dict[str, Any] = {
        "gradients": grad,
        "mask": mask,
        "starts": starts,
        "offsets": offsets,
        "keep_pruned": pruned == "hidden",
    }
    numbers = (("factors", "one_factor", factor), ("addends", "one_addend", addend), ("sigma", "one_sigma", sigma))
    for each, one, value in numbers:
        many = isinstance(value, Tensor) and value.ndim > 0
        fields[each if many else one] = value.item() if isinstance(value, Tensor) and not many else value
    run("perturb", grad, **fields)


def run(loop: str, matrix: Tensor, **fields: Any) -> Step:
    """Run a loop over a matrix. Tensors are passed as pointers."""
    elements = matrix.numel()
    rows = matrix.shape[0] if matrix.ndim > 1 else 1
    threads = min(torch.get_num_threads(), 1 + elements // WORK_OF_A_THREAD)
    pointers = {name: value.data_ptr() if isinstance(value, Tensor) else value for name, value in fields.items()}
    step = Step(rows, elements // rows if rows else 0, threads, **pointers)
    kernels().step_loop(byref(step), NUMBERS[loop])
    return step
