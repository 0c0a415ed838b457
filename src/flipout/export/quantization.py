"""Networks in int8: ONNX files with weights and activations of eight bits, by onnxruntime's own quantizer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..channels.comparison import output_tensors
from ..runtime.batches import Batches
from ..runtime.example_call import UnsuitableCallError, tensor_arguments

WORST = 0.5
"""The largest error of a quantized network that is accepted: the root mean square, relative to that of the outputs."""

Run = Callable[[tuple[Tensor, ...]], list[Tensor]]


@dataclass(frozen=True)
class Agreement:
    """How well a quantized network agrees with the network in floating point, on the calibration batches.

    Args:
        error: the root mean square of the difference of the outputs, relative to that of the outputs.
        same: the share of the largest outputs along the last axis, such as predicted classes, that are the same.
        largest: the largest difference.
    """

    error: float
    same: float
    largest: float


class Examples:
    """The positional arguments of a network for each calibration batch, as tensors on the CPU."""

    def __init__(self, network: nn.Module, batches: Iterable[Any]) -> None:
        self.network, self.batches = network, Batches(batches, network)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        for call in self.batches:
            kwargs = {key: value for key, value in call.kwargs.items() if key != "use_cache"}
            try:
                positional, named = tensor_arguments(self.network, call.args, kwargs)
                if named:
                    raise UnsuitableCallError(f"it has the keyword argument {next(iter(named))}")
            except UnsuitableCallError as error:
                raise ValueError(f"a calibration batch cannot be given to an ONNX network: {error}") from error
            yield tuple(each.cpu() for each in positional)


def quantize(source: Path, target: Path, examples: Examples) -> None:
    """Write a quantized form of an ONNX file: QDQ, weights symmetric and per channel, so that zeros stay zeros."""
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder) / "prepared.onnx"
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)  # folds batch norms
        quantization.quantize_static(
            str(prepared),
            str(target),
            _reader(quantization.CalibrationDataReader, prepared, examples),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            extra_options={"WeightSymmetric": True},
        )


def _reader(base: Any, path: Path, examples: Examples) -> Any:
    """What the quantizer reads calibration batches from."""
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    constants = {each.name for each in graph.initializer}
    names = [each.name for each in graph.input if each.name not in constants]
    batches = iter(examples)

    class Reader(base):  # type: ignore[misc]
        def get_next(self) -> dict[str, Any] | None:
            inputs = next(batches, None)
            if inputs is None:
                return None
            return {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}

    return Reader()


@torch.no_grad()
def agreement_of(network: nn.Module, run: Run, examples: Examples) -> Agreement:
    """Compare a network with its quantized form on the calibration batches."""
    difference = power = largest = 0.0
    same = number = 0
    for inputs in examples:
        for ours, theirs in zip(output_tensors(network(*inputs)), run(inputs), strict=True):
            if not ours.is_floating_point():
                continue
            off = ours.double() - theirs.double()
            difference += float(off.square().sum())
            power += float(ours.double().square().sum())
            largest = max(largest, float(off.abs().max()))
            if ours.ndim:
                same += int((ours.argmax(-1) == theirs.argmax(-1)).sum())
                number += ours[..., 0].numel()
    return Agreement((difference / power) ** 0.5 if power else 0.0, same / number if number else 1.0, largest)


def check(agreement: Agreement) -> None:
    """Refuse a quantized network that computes something else."""
    if not agreement.error <= WORST:
        raise ValueError(
            f"the int8 network differs too much from the network (its outputs are off by {agreement.error:.0%}, and "
            f"{agreement.same:.1%} of its largest outputs are the same); no file was written. Calibrate with more "
            "batches, or batches that are like the real inputs"
        )
