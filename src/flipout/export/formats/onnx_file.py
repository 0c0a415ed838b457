"""Write ONNX files. Each file is verified with onnxruntime before it is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...atomic_files import replacing
from ...graph.comparison import Example, as_example, inputs_like
from ...graph.copies import evaluation_copy, first_line
from .dynamic_batch import dynamic_batch_axes
from .onnx_runtime import MISSING_PACKAGE, open_session, run_session
from .quiet_exporter import silenced
from .verification import verify_outputs


@torch.no_grad()
def to_onnx(model: nn.Module, path: Path | str, example_input: Example) -> float:
    """Write a network in evaluation mode as ONNX, for any batch size; return the largest difference of its outputs.

    Before the file is put in place, onnxruntime runs it on random inputs of two batch sizes. If an output differs from
    the network's by more than rounding, an error is raised and no file is written. Zeros stay zeros.

    Args:
        model: any network that `torch.export` supports, dense or compacted; it is not changed.
        path: the file; an existing one is replaced.
        example_input: the inputs that the network is called with; the first axis of each tensor is the batch.
    """
    example, network = tuple(each.cpu() for each in as_example(example_input)), evaluation_copy(model).cpu()
    program = _export(network, inputs_like(example, 2))
    with replacing(Path(path)) as temporary:
        program.save(temporary, external_data=False)
        session = open_session(temporary)
        return verify_outputs(network, lambda *inputs: run_session(session, inputs), example, "onnxruntime")


def _export(network: nn.Module, example: tuple[Tensor, ...]) -> Any:
    for package in ("onnx", "onnxscript"):
        try:
            __import__(package)
        except ImportError as error:
            raise ImportError(MISSING_PACKAGE.format(package)) from error
    with silenced():
        try:
            return torch.onnx.export(
                network,
                example,
                dynamo=True,
                dynamic_shapes=dynamic_batch_axes(network, len(example)),
                external_data=False,
                verbose=False,
            )
        except Exception as error:  # the exporter's errors have no other common base
            reason = first_line(cause if isinstance(cause := error.__cause__, Exception) else error)
            raise ValueError(f"{type(network).__name__} cannot be written as ONNX: {reason}") from error
