"""2:4 weights for the sparse tensor cores of NVIDIA GPUs: which layers qualify, and the conversion."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..channels.copies import evaluation_copy
from ..text_table import table

SHAPES: dict[torch.dtype, tuple[int, int]] = {
    torch.float16: (32, 64),
    torch.bfloat16: (32, 64),
    torch.int8: (16, 128),
}
"""The rows and columns that a weight must be a multiple of, for each type: what torch's CUTLASS conversion asks for.

float32 is missing: there torch keeps one weight of two, so that it would drop weights of a 2:4 pattern.
"""


@dataclass(frozen=True)
class SemiStructuredReport:
    """Which Linear layers can be converted, and why others cannot; prints as a table.

    Args:
        accepted: the names of the layers that can be converted.
        refused: for every other Linear layer, the reason.
    """

    accepted: tuple[str, ...]
    refused: dict[str, str]

    def __str__(self) -> str:
        rows = [(name, "2:4") for name in self.accepted]
        return table(("layer", "semi-structured"), rows + list(self.refused.items()))


def check_semi_structured(model: nn.Module, dtype: torch.dtype = torch.float16) -> SemiStructuredReport:
    """Report which Linear layers `torch.sparse.to_sparse_semi_structured` accepts in a type, on a GPU.

    The pattern, the shapes and the type are checked here. The kernels themselves need a GPU.

        >>> print(flipout.export.check_semi_structured(model))
        layer                                   semi-structured
        -------------------------------------------------------
        0      its shape (16, 12) is not a multiple of (32, 64)
        2       its shape (4, 16) is not a multiple of (32, 64)

    Args:
        model: the network; it is not changed.
        dtype: the type that its weights will have: float16, bfloat16 or int8.
    """
    if dtype not in SHAPES:
        known = ", ".join(str(each).removeprefix("torch.") for each in SHAPES)
        why = ". In float32 the hardware keeps 1 of 2 weights, not 2 of 4" if dtype == torch.float32 else ""
        raise ValueError(f"dtype is {dtype}; semi-structured weights are of {known}{why}")
    problems = {
        name: problem_of(module.weight, dtype) for name, module in model.named_modules() if type(module) is nn.Linear
    }
    refused = {name: problem for name, problem in problems.items() if problem is not None}
    return SemiStructuredReport(tuple(name for name in problems if name not in refused), refused)


def problem_of(weight: Tensor, dtype: torch.dtype) -> str | None:
    """Why a weight cannot be converted; None if it can."""
    rows, columns = SHAPES[dtype]
    if weight.shape[0] % rows or weight.shape[1] % columns:
        return f"its shape {tuple(weight.shape)} is not a multiple of ({rows}, {columns})"
    wide = int((weight.detach().view(weight.shape[0], -1, 4) != 0).sum(2).gt(2).sum())
    if wide:
        return f"{wide:,} groups of four have more than two weights: prune with granularity='2:4'"
    return None


@torch.no_grad()
def to_semi_structured(model: nn.Module, dtype: torch.dtype = torch.float16) -> nn.Module:
    """Return a copy whose 2:4 Linear layers have semi-structured sparse weights, for inference on an NVIDIA GPU.

    Linear layers that do not qualify stay dense; `check_semi_structured` says why. The outputs are those of the network
    in the type given, up to rounding.

    Args:
        model: the network, on a GPU; it is not changed.
        dtype: the type of the result.
    """
    report = check_semi_structured(model, dtype)
    if not report.accepted:
        raise ValueError(f"no Linear layer of {type(model).__name__} can be converted:\n{report}")
    if not next(model.parameters()).is_cuda:
        raise RuntimeError(
            f"semi-structured products need an NVIDIA GPU of compute capability 8.0 or later, and this network is on "
            f"the {next(model.parameters()).device.type.upper()}. {len(report.accepted)} of its layers qualify: move "
            "it to a GPU, and call this again"
        )
    converted = evaluation_copy(model).to(dtype).requires_grad_(False)
    for name in report.accepted:
        layer = converted.get_submodule(name)
        sparse = torch.sparse.to_sparse_semi_structured(layer.get_parameter("weight").contiguous())
        layer.weight = nn.Parameter(sparse, requires_grad=False)
    return converted
