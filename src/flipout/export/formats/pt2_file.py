"""Write `torch.export` files, which run with torch alone."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...atomic_files import replacing
from ...graph.comparison import Example, as_example, inputs_like
from ...graph.copies import evaluation_copy, first_line
from .dynamic_batch import dynamic_batch_axes
from .quiet_exporter import silenced
from .verification import verify_outputs


@torch.no_grad()
def to_pt2(model: nn.Module, path: Path | str, example_input: Example) -> float:
    """Write a network in evaluation mode for `torch.export.load(path).module()`; return the largest difference.

    The file accepts any batch size. Before it is put in place, it is loaded and run on random inputs of two batch
    sizes. If an output differs by more than rounding, an error is raised and no file is written. Load only files that
    you trust: `torch.export.load` unpickles data if a file asks for it. Files written here contain only tensors.

    Args:
        model: any network that `torch.export` supports; it is not changed.
        path: the file, which must end in .pt2; an existing one is replaced.
        example_input: the inputs that the network is called with; the first axis of each tensor is the batch.
    """
    path = Path(path)
    if path.suffix != ".pt2":
        raise ValueError(f"{path} does not end in .pt2, which torch.export requires: name it {path}.pt2")
    example, network = tuple(each.cpu() for each in as_example(example_input)), evaluation_copy(model).cpu()
    with silenced(), replacing(path) as temporary:
        written = io.BytesIO()  # given a path, torch would store the file name in the file
        torch.export.save(_export(network, inputs_like(example, 2)), written)
        temporary.write_bytes(written.getvalue())
        loaded = torch.export.load(temporary).module()
        return verify_outputs(network, loaded, example, "torch.export")


def _export(network: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    try:
        return torch.export.export(network, inputs, dynamic_shapes=dynamic_batch_axes(network, len(inputs)))
    except Exception as error:  # the exporter's errors have no other common base
        raise ValueError(f"{type(network).__name__} cannot be exported: {first_line(error)}") from error
