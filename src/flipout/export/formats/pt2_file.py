"""Networks as `torch.export` files, which run where there is torch and nothing else of ours."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...atomic_files import replacing
from ...graph.comparison import Example, as_example, inputs_like, own_copy
from ...graph.tracing_errors import first_line
from .verification import batch_axes, largest_difference


@torch.no_grad()
def to_pt2(model: nn.Module, path: Path | str, example_input: Example) -> float:
    """Writes a network in evaluation mode for `torch.export.load(path).module()`, for any batch size.

    Before the file takes its place it is read and run on random inputs in two batch sizes; other outputs are an error.
    The largest difference is returned. Read only files that you trust: `torch.export.load` unpickles what a file of
    somebody else asks it to, though the ones written here hold tensors and nothing else.

    Args:
        model: any network that `torch.export` can follow; it stays as it is.
        path: the file, ending in .pt2; what was there is replaced.
        example_input: what the network is called with; the first axis of each tensor is the batch.
    """
    path = Path(path)
    if path.suffix != ".pt2":
        raise ValueError(f"{path} does not end in .pt2, and torch.export reads no other files: name it {path}.pt2")
    example, network = tuple(each.cpu() for each in as_example(example_input)), own_copy(model).cpu()
    with warnings.catch_warnings(), replacing(path) as temporary:
        warnings.simplefilter("ignore")  # of torch's exporter, about itself
        written = io.BytesIO()  # given a path, torch would put its name into the file
        torch.export.save(_program(network, inputs_like(example, 2)), written)
        temporary.write_bytes(written.getvalue())
        read = torch.export.load(temporary).module()
        return largest_difference(network, read, example, "torch.export")


def _program(network: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    try:
        return torch.export.export(network, inputs, dynamic_shapes=batch_axes(network, len(inputs)))
    except Exception as error:  # the exporter's errors share no other class
        raise ValueError(f"{type(network).__name__} cannot be exported: {first_line(error)}") from error
