"""Measure a network for its model card."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..graph.comparison import Example, as_example, inputs_like
from ..graph.copies import evaluation_copy, first_line
from ..graph.live_paths import count_effective
from ..modules import unwrapped
from .activation_memory import peak_activation_bytes
from .compaction import compact_copy
from .effective_sparsity import weights_to_count
from .file_sizes import dense_file_bytes, sparse_file_bytes
from .formats.onnx_file import to_onnx
from .formats.onnx_runtime import open_session, session_inputs
from .model_card import Latency, ModelCard
from .multiply_adds import MultiplyAdds, count_multiply_adds
from .speed.acceleration import accelerate
from .speed.interleaved_timing import time_interleaved

TIMED_BATCHES = (1, 32)


@torch.no_grad()
def card(
    model: nn.Module,
    example_input: Example,
    *,
    repetitions: int = 20,
    batches: Sequence[int] = TIMED_BATCHES,
    onnx: bool = True,
) -> ModelCard:
    """Measure a network: unchanged, compacted, and accelerated.

    Latencies are measured interleaved, in one process, so that their ratios are valid on a busy machine. If onnxruntime
    is installed, it runs the dense and the compacted network too.

    Args:
        model: the network; it is not changed, and is measured on the CPU.
        example_input: the inputs that the network is called with, of any batch size.
        repetitions: the number of timings of each form.
        batches: the batch sizes to time.
        onnx: whether to time onnxruntime, if it is installed.
    """
    example = tuple(tensor.cpu() for tensor in as_example(example_input))
    dense = evaluation_copy(model).cpu().requires_grad_(False)
    compacted, notes = compact_copy(dense, example, fixed_size=False)
    # Pruners are attached to the weights of the network itself, not to those of the copy.
    weights, one = count_effective(dense, example, weights_to_count(model)), inputs_like(example, 1)
    _check_batches(dense, example, batches)
    operations, operations_compacted = count_multiply_adds(dense, one), count_multiply_adds(compacted, one)
    with_onnx = onnx and all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime"))
    latencies, latency_notes = _latencies(dense, compacted, example, repetitions, batches, with_onnx=with_onnx)
    return ModelCard(
        network=type(unwrapped(model)).__name__,
        prunable=weights.prunable,
        nonzero=weights.nonzero,
        effective=weights.effective,
        file_dense=dense_file_bytes(dense),
        file_sparse=sparse_file_bytes(dense),
        file_compacted=dense_file_bytes(compacted),
        multiply_adds_dense=operations.dense,
        multiply_adds_nonzero=operations.nonzero,
        multiply_adds_compacted=operations_compacted.dense,
        activations_dense=peak_activation_bytes(dense, one),
        activations_compacted=peak_activation_bytes(compacted, one),
        latencies=tuple(latencies),
        threads=torch.get_num_threads(),
        notes=(*notes, *_not_counted(operations), *latency_notes),
    )


def _not_counted(operations: MultiplyAdds) -> tuple[str, ...]:
    """Return a note that names the operations whose multiply-adds could not be counted."""
    if not operations.not_counted:
        return ()
    names = ", ".join(operations.not_counted)
    return (f"the multiply-adds do not include those of {names}, for which there is no formula",)


def _check_batches(network: nn.Module, example: tuple[Tensor, ...], batches: Sequence[int]) -> None:
    for batch in sorted({1, *batches}):
        try:
            network(*inputs_like(example, batch))
        except Exception as error:  # the user's code may raise any error
            raise ValueError(
                f"the network does not run on a batch of {batch} (the first axis): {first_line(error)}"
            ) from error


def _latencies(
    dense: nn.Module,
    compacted: nn.Module,
    example: tuple[Tensor, ...],
    repetitions: int,
    batches: Sequence[int],
    *,
    with_onnx: bool,
) -> tuple[list[Latency], list[str]]:
    """Time every form in every runtime at every batch size; return also notes on what could not be timed."""
    latencies: list[Latency] = []
    notes: list[str] = []
    sessions: dict[str, Any] = {}
    if with_onnx:
        try:
            sessions = {"dense": _onnx_session(dense, example), "compacted": _onnx_session(compacted, example)}
        except ValueError as error:
            notes.append(f"not timed in onnxruntime: {error}")
    for batch in batches:
        inputs = inputs_like(example, batch)
        accelerated = accelerate(dense, inputs, repetitions=repetitions)
        forms = {"dense": dense, "compacted": compacted, "accelerated": accelerated}
        functions = {(form, "PyTorch"): partial(network, *inputs) for form, network in forms.items()}
        functions |= {
            (form, "onnxruntime"): partial(session.run, None, session_inputs(session, inputs))
            for form, session in sessions.items()
        }
        latencies += [Latency(*name, batch, time) for name, time in time_interleaved(functions, repetitions).items()]
    return latencies, notes


def _onnx_session(network: nn.Module, example: tuple[Tensor, ...]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        to_onnx(network, path, example)
        return open_session(path)
