"""ONNX files, each checked against onnxruntime before it is there."""

from __future__ import annotations

import copy
import inspect
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..layers import unwrapped
from .files import replacing

TOLERANCE = 1e-4
"""Of the largest output, or of one if that is larger."""
BATCHES = (1, 3)
NEEDED = "ONNX needs onnx, onnxscript and onnxruntime ({} is missing): pip install 'flipout[export]'"

Example = Tensor | tuple[Tensor, ...]


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
    example = example_input if isinstance(example_input, tuple) else (example_input,)
    network = copy.deepcopy(unwrapped(model)).cpu().eval()
    program = _program(network, inputs_like(example, 2))
    with replacing(Path(path)) as temporary:
        program.save(temporary, external_data=False)
        runtime = session(temporary)
        return max(_difference(network, runtime, inputs_like(example, batch)) for batch in BATCHES)


def session(path: Path) -> Any:
    """onnxruntime with a network in it, on the CPU, with as many threads as torch has."""
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError(NEEDED.format(error.name)) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def feed(runtime: Any, example: tuple[Tensor, ...]) -> dict[str, Any]:
    """Tensors under the names that the file has for its inputs."""
    names = [each.name for each in runtime.get_inputs()]
    return {name: tensor.numpy() for name, tensor in zip(names, example, strict=True)}


def inputs_like(example: tuple[Tensor, ...], batch: int) -> tuple[Tensor, ...]:
    """Inputs of another batch size: random numbers, or rows of the example where it holds no real numbers."""
    generator = torch.Generator().manual_seed(0)

    def like(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            return torch.randn(batch, *tensor.shape[1:], generator=generator).to(tensor.dtype)
        return tensor.cpu()[torch.randint(len(tensor), (batch,), generator=generator)]

    return tuple(like(tensor) for tensor in example)


def _program(network: nn.Module, example: tuple[Tensor, ...]) -> Any:
    for package in ("onnx", "onnxscript"):
        try:
            __import__(package)
        except ImportError as error:
            raise ImportError(NEEDED.format(package)) from error
    # Any batch size: one that is part of the example would be taken for a constant if it were one.
    axes = tuple({0: torch.export.Dim.DYNAMIC} for _ in example)
    with _quietly():
        try:
            return torch.onnx.export(
                network, example, dynamo=True, dynamic_shapes=_shapes(network, axes), external_data=False, verbose=False
            )
        except Exception as error:  # the exporter's errors share no other class
            reason = str(error.__cause__ or error).strip().splitlines()[0]
            raise ValueError(f"{type(network).__name__} cannot be written as ONNX: {reason}") from error


def _shapes(network: nn.Module, axes: tuple[dict[int, Any], ...]) -> Any:
    """The exporter wants those of `*arguments` as one."""
    kinds = [parameter.kind for parameter in inspect.signature(network.forward).parameters.values()]
    return (axes,) if kinds[:1] == [inspect.Parameter.VAR_POSITIONAL] else axes


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


def _difference(network: nn.Module, runtime: Any, inputs: tuple[Tensor, ...]) -> float:
    """Between the outputs of the network and of onnxruntime."""
    expected = pytree.tree_leaves(network(*inputs))
    found = [torch.from_numpy(output) for output in runtime.run(None, feed(runtime, inputs))]
    worst = 0.0
    for ours, theirs in zip(expected, found, strict=True):
        difference = float((ours - theirs).abs().max()) if ours.numel() else 0.0
        if not difference <= TOLERANCE * max(1.0, float(ours.abs().max()) if ours.numel() else 0.0):
            raise ValueError(
                f"onnxruntime gives other outputs than {type(network).__name__} for a batch of {len(inputs[0])}: they "
                f"differ by {difference:.3g}; no file was written"
            )
        worst = max(worst, difference)
    return worst
