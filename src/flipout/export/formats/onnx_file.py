"""ONNX files, each checked against onnxruntime before it is there."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...atomic_files import replacing
from ...graph.comparison import Example, as_example, inputs_like, own_copy
from ...graph.tracing_errors import first_line
from .verification import batch_axes, largest_difference

NEEDED = "ONNX needs onnx, onnxscript and onnxruntime ({} is missing): pip install 'flipout[export]'"


@torch.no_grad()
def to_onnx(model: nn.Module, path: Path | str, example_input: Example) -> float:
    """Writes a network in evaluation mode as ONNX, for any batch size, and gives the largest difference of its outputs.

    Before the file takes its place, onnxruntime runs it on random inputs in two batch sizes; if an output differs from
    the network's own by more than rounding, there is an error and no file. Zeros stay zeros.

    Args:
        model: any network that `torch.export` can follow, dense or compacted; it stays as it is.
        path: the file; what was there is replaced.
        example_input: what the network is called with; the first axis of each tensor is the batch.
    """
    example, network = tuple(each.cpu() for each in as_example(example_input)), own_copy(model).cpu()
    program = _program(network, inputs_like(example, 2))
    with replacing(Path(path)) as temporary:
        program.save(temporary, external_data=False)
        runtime = session(temporary)
        return largest_difference(network, lambda *inputs: _run(runtime, inputs), example, "onnxruntime")


def session(path: Path) -> Any:
    """onnxruntime with a network in it, on the CPU, with as many threads as torch has."""
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError(NEEDED.format(error.name)) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # threads that wait would slow down others
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors share no other class
        raise ValueError(f"onnxruntime cannot run the network: {first_line(error)}") from error


def feed(runtime: Any, example: tuple[Tensor, ...]) -> dict[str, Any]:
    """Tensors under the names that the file has for its inputs."""
    names = [each.name for each in runtime.get_inputs()]
    return {name: tensor.numpy() for name, tensor in zip(names, example, strict=True)}


def _run(runtime: Any, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    return [torch.from_numpy(output) for output in runtime.run(None, feed(runtime, inputs))]


def _program(network: nn.Module, example: tuple[Tensor, ...]) -> Any:
    for package in ("onnx", "onnxscript"):
        try:
            __import__(package)
        except ImportError as error:
            raise ImportError(NEEDED.format(package)) from error
    with _quietly():
        try:
            return torch.onnx.export(
                network,
                example,
                dynamo=True,
                dynamic_shapes=batch_axes(network, len(example)),
                external_data=False,
                verbose=False,
            )
        except Exception as error:  # the exporter's errors share no other class
            reason = first_line(cause if isinstance(cause := error.__cause__, Exception) else error)
            raise ValueError(f"{type(network).__name__} cannot be written as ONNX: {reason}") from error


@contextmanager
def _quietly() -> Iterator[None]:
    """The exporter tells of packages that nobody asked for, and warns of its own code."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
