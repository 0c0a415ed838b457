"""Run ONNX files with onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...graph.copies import first_line

MISSING_PACKAGE = "ONNX needs onnx, onnxscript and onnxruntime ({} is missing): pip install 'flipout[export]'"


def open_session(path: Path) -> Any:
    """Return an onnxruntime session for a file, on the CPU, with as many threads as torch uses."""
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError(MISSING_PACKAGE.format(error.name)) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads would slow down others
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no other common base
        raise ValueError(f"onnxruntime cannot run the network: {first_line(error)}") from error


def session_inputs(session: Any, inputs: tuple[Tensor, ...]) -> dict[str, Any]:
    """Return the inputs as arrays by the names that the session expects."""
    names = [each.name for each in session.get_inputs()]
    return {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}


def run_session(session: Any, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Run a session and return its outputs as tensors."""
    return [torch.from_numpy(output) for output in session.run(None, session_inputs(session, inputs))]
