"""Networks as files of other runtimes: ONNX, and `torch.export` files, which run with torch alone.

Each file is run on random inputs before it is put in place. If an output differs from the network's by more than
rounding, an error is raised and no file is written.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..atomic_files import replacing
from ..channels.comparison import (
    Example,
    as_example,
    coarsest_epsilon,
    describe_difference,
    inputs_like,
    largest_difference,
)
from ..channels.copies import evaluation_copy, first_line
from .quantization import Examples, agreement_of, check, quantize

OUTPUT_TOLERANCE = 1e-4
"""The largest difference that is accepted, relative to the size of the outputs."""
ROUNDING_STEPS = 10
"""In half precision, whose rounding is coarser than the tolerance, this many steps of rounding are accepted."""
BATCH_SIZES = (1, 3)
"""The batch sizes that a file is run with. It is exported with another one."""
NOISY_LOGGERS = ("torch.onnx", "torch.fx.experimental.symbolic_shapes", "torch.export")
MISSING_PACKAGE = "ONNX needs onnx, onnxscript and onnxruntime ({} is missing): pip install 'flipout[export]'"


@torch.no_grad()
def to_onnx(
    model: nn.Module, path: Path | str, example_input: Example, *, calibrate: Iterable[Any] | None = None
) -> float:
    """Write a network in evaluation mode as ONNX, for any batch size; return the largest difference of its outputs.

    Before the file is put in place, onnxruntime runs it on random inputs of two batch sizes. Zeros stay zeros.

    With `calibrate` the file has weights and activations of eight bits (QDQ, weights symmetric and per channel). It is
    compared with the network on the calibration batches, and not written if its outputs are off by more than half of
    their size.

    Args:
        model: any network that `torch.export` supports, dense or compacted; it is not changed.
        path: the file; an existing one is replaced.
        example_input: the inputs that the network is called with; the first axis of each tensor is the batch.
        calibrate: batches that show the range of the activations, with or without targets: a few hundred examples.
    """
    for package in ("onnx", "onnxscript"):
        try:
            __import__(package)
        except ImportError as error:
            raise ImportError(MISSING_PACKAGE.format(package)) from error
    network, example = _on_cpu(model, example_input)
    with _quiet_exporter(f"{type(network).__name__} cannot be written as ONNX"):
        program: Any = torch.onnx.export(
            network,
            inputs_like(example, 2),
            dynamo=True,
            dynamic_shapes=_dynamic_batch(network, len(example)),
            external_data=False,
            verbose=False,
        )
    with replacing(Path(path)) as temporary:
        program.save(temporary, external_data=False)
        session = open_session(temporary)
        largest = verify_outputs(network, lambda *inputs: run_session(session, inputs), example, "onnxruntime")
        if calibrate is not None:
            examples = Examples(network, calibrate)
            with _quiet_exporter(f"{type(network).__name__} cannot be quantized"):
                quantize(temporary, temporary, examples)
            session = open_session(temporary)
            agreement = agreement_of(network, lambda inputs: run_session(session, inputs), examples)
            check(agreement)
            largest = agreement.largest
        return largest


@torch.no_grad()
def to_pt2(model: nn.Module, path: Path | str, example_input: Example) -> float:
    """Write a network in evaluation mode for `torch.export.load(path).module()`; return the largest difference.

    The file accepts any batch size. Before it is put in place, it is loaded and run on random inputs of two batch
    sizes. Load only files that you trust: `torch.export.load` unpickles data if a file asks for it. Files written here
    contain only tensors.

        >>> flipout.export.to_pt2(model, "net.pt2", example_input) < 1e-5
        True

    Args:
        model: any network that `torch.export` supports; it is not changed.
        path: the file, which must end in .pt2; an existing one is replaced.
        example_input: the inputs that the network is called with; the first axis of each tensor is the batch.
    """
    path = Path(path)
    if path.suffix != ".pt2":
        raise ValueError(f"{path} does not end in .pt2, which torch.export requires: name it {path}.pt2")
    network, example = _on_cpu(model, example_input)
    with _quiet_exporter(f"{type(network).__name__} cannot be exported"):
        dynamic = _dynamic_batch(network, len(example))
        program = torch.export.export(network, inputs_like(example, 2), dynamic_shapes=dynamic)
    with _silenced(), replacing(path) as temporary:
        written = io.BytesIO()  # given a path, torch would store the file name in the file
        torch.export.save(program, written)
        temporary.write_bytes(written.getvalue())
        return verify_outputs(network, torch.export.load(temporary).module(), example, "torch.export")


def verify_outputs(
    network: nn.Module, exported: Callable[..., Any], example: tuple[Tensor, ...], runtime: str
) -> float:
    """Compare a network and its exported form on random inputs of two batch sizes; return the largest difference.

    Raise a ValueError, which names the runtime, if outputs differ by more than rounding.
    """
    largest = 0.0
    for batch in BATCH_SIZES:
        inputs = inputs_like(example, batch)
        expected, found = network(*inputs), exported(*inputs)
        tolerance = max(OUTPUT_TOLERANCE, ROUNDING_STEPS * coarsest_epsilon(expected))
        if difference := describe_difference(expected, found, tolerance):
            raise ValueError(
                f"the outputs of {runtime} differ from those of {type(network).__name__} for a batch of {batch} "
                f"({difference}); no file was written"
            )
        largest = max(largest, largest_difference(expected, found))
    return largest


def open_session(path: Path) -> Any:
    """An onnxruntime session for a file, on the CPU, with as many threads as torch uses."""
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
    """The inputs as arrays by the names that the session expects."""
    names = [each.name for each in session.get_inputs()]
    return {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}


def run_session(session: Any, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Run a session and return its outputs as tensors."""
    return [torch.from_numpy(output) for output in session.run(None, session_inputs(session, inputs))]


def _on_cpu(model: nn.Module, example_input: Example) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return evaluation_copy(model).cpu(), tuple(each.cpu() for each in as_example(example_input))


def _dynamic_batch(network: nn.Module, inputs: int) -> Any:
    """`dynamic_shapes` for torch's exporters: the first axis of every input is dynamic."""
    axes = tuple({0: torch.export.Dim.DYNAMIC} for _ in range(inputs))
    kinds = [parameter.kind for parameter in inspect.signature(network.forward).parameters.values()]
    is_variadic = kinds[:1] == [inspect.Parameter.VAR_POSITIONAL]  # the exporters treat `*args` as one argument
    return (axes,) if is_variadic else axes


@contextlib.contextmanager
def _quiet_exporter(problem: str) -> Iterator[None]:
    """Silence an exporter, and raise its errors with the problem and the reason in one line."""
    with _silenced():
        try:
            yield
        except Exception as error:  # the exporters' errors have no other common base
            raise ValueError(f"{problem}: {first_line(error.__cause__ or error)}") from error


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Silence warnings about torch's own code, logs of optional packages, and graphs that are printed on an error."""
    loggers = [logging.getLogger(name) for name in NOISY_LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
