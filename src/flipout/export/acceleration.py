"""Find the fastest network with the same outputs on this CPU, by measuring."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ..channels.comparison import Example, as_example, batch_size, describe_difference, inputs_like
from ..channels.copies import (
    UnsupportedNetworkError,
    evaluation_copy,
    first_line,
    has_hooks,
    independent_copy,
    without_printed_errors,
)
from ..channels.record import Recording, record
from ..channels.rules import contractions
from ..channels.rules.table import rule_of
from .compaction import attach_attributes, compact_copy
from .layer_trials import (
    DENSE,
    FORM_TOLERANCE,
    AccelerationChoice,
    AccelerationChoices,
    choose_form,
    with_sparse_layers,
    zero_share,
)
from .timing import time_interleaved

UNCHANGED, COMPACTED, FOLDED, CHANNELS_LAST, SPARSE_LAYERS = (
    "unchanged",
    "compacted",
    "compacted, norms folded",
    "compacted, norms folded, channels last",
    "compacted, norms folded, sparse layers",
)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
WHOLE_NETWORK = "the whole network"
CHANNELS_LAST_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
"""The channels-last format of images and of volumes, by the number of axes."""


class AcceleratedModel(nn.Module):
    """A network for inference, for inputs of one size.

    `choices` lists what was chosen for each layer and why, and `notes` what was not possible.
    """

    def __init__(
        self, network: nn.Module, choices: AccelerationChoices, example: tuple[Tensor, ...], *, channels_last: bool
    ) -> None:
        super().__init__()
        self.network, self.choices, self.channels_last = network, choices, channels_last
        self.sizes = [each.shape[1:] for each in example]
        self.notes: tuple[str, ...] = ()
        self.requires_grad_(False)
        self.eval()

    def forward(self, *inputs: Tensor) -> Any:
        if (sizes := [each.shape[1:] for each in inputs]) != self.sizes:
            expected, found = (", ".join(str(tuple(size)) for size in each) for each in (self.sizes, sizes))
            raise ValueError(
                f"this network was accelerated for inputs of size {expected} (without the batch), but these have size "
                f"{found}: call accelerate again with such an example"
            )
        with torch.no_grad():
            return self.network(*(_to_channels_last(each) for each in inputs) if self.channels_last else inputs)

    def train(self, mode: bool = True) -> AcceleratedModel:
        if mode:
            raise RuntimeError("an accelerated network is for inference only: train the network it was made from")
        return super().train(mode)


@torch.no_grad()
def accelerate(model: nn.Module, example_input: Example, *, repetitions: int = 15) -> nn.Module:
    """Return the fastest equivalent of a network on this machine, with the same outputs up to rounding.

    The network is compacted, and batch norms are folded into the convolutions before them. For each layer that is still
    very sparse, sparse forms are timed against the dense layer, inside the running network. Then whole networks are
    timed against the original. If none is faster by 5 %, a plain copy of the original is returned. The result has the
    attributes `choices`, which lists what was chosen and why, and `notes`, which lists what was not possible.

        >>> fast = flipout.export.accelerate(model, example_input)
        >>> torch.allclose(fast(x), model(x), atol=1e-5)
        True

    Args:
        model: the network, on the CPU; it is not changed.
        example_input: the inputs that the network is called with. The result accepts other batch sizes, but the fastest
            network for one image may not be the fastest for 32. Inputs of another size are an error.
        repetitions: the number of timings of each form.
    """
    example, original = as_example(example_input), evaluation_copy(model).requires_grad_(False)
    if any(tensor.device.type != "cpu" for tensor in (*original.state_dict().values(), *example)):
        raise ValueError("accelerate measures on the CPU: move the network and the example there with .cpu()")
    compacted, notes = compact_copy(original, (example, {}))
    folded = fold_norms(compacted, example)
    try:
        sparse, choices = with_sparse_layers(folded, example, repetitions)
    except Exception as error:  # the user's code may read attributes of a layer that only torch's own layers have
        sparse, choices = folded, AccelerationChoices()
        notes.append(f"sparse layers could not be tried ({first_line(error)})")
    variants = {UNCHANGED: original, COMPACTED: compacted, FOLDED: folded}
    variants[CHANNELS_LAST] = independent_copy(folded)
    for tensor in (*variants[CHANNELS_LAST].parameters(), *variants[CHANNELS_LAST].buffers()):
        tensor.data = _to_channels_last(tensor.data)
    if any(choice.chosen != DENSE for choice in choices):
        variants[SPARSE_LAYERS] = sparse
    return _fastest_variant(variants, choices, example, repetitions, tuple(notes))


def _fastest_variant(
    variants: dict[str, nn.Module],
    choices: AccelerationChoices,
    example: tuple[Tensor, ...],
    repetitions: int,
    notes: tuple[str, ...],
) -> nn.Module:
    """Return the fastest variant with the right outputs, unless the unchanged network is about as fast."""
    for network in variants.values():
        without_printed_errors(network)
    models = {
        name: AcceleratedModel(network, choices, example, channels_last=name == CHANNELS_LAST)
        for name, network in variants.items()
    }
    expected = [(example, models[UNCHANGED](*example))]
    with contextlib.suppress(Exception):  # some networks do not accept another batch size
        larger = inputs_like(example, batch_size(example) + 1)
        expected.append((larger, models[UNCHANGED](*larger)))
    models = {name: model for name, model in models.items() if name == UNCHANGED or _has_outputs(model, expected)}
    # The unchanged network is timed and returned without the wrapper, which would make it slower.
    timed = {name: variants[name] if name == UNCHANGED else model for name, model in models.items()}
    times = time_interleaved({name: partial(model, *example) for name, model in timed.items()}, repetitions)
    whole = choose_form(WHOLE_NETWORK, zero_share(variants[UNCHANGED]), times)
    if whole.chosen != SPARSE_LAYERS:
        choices = AccelerationChoices(_overruled(choice, whole.chosen) for choice in choices)
    fastest = timed[whole.chosen]
    return attach_attributes(fastest, notes=notes, choices=AccelerationChoices([*choices, whole]))


def _has_outputs(model: nn.Module, expected: Sequence[tuple[tuple[Tensor, ...], Any]]) -> bool:
    """Return whether a network runs on the inputs and has the expected outputs."""
    try:
        return all(describe_difference(outputs, model(*inputs), FORM_TOLERANCE) is None for inputs, outputs in expected)
    except Exception:  # the user's code may raise any error
        return False


def _overruled(choice: AccelerationChoice, whole: str) -> AccelerationChoice:
    """Return the choice of a layer when another variant of the whole network is faster."""
    if choice.chosen == DENSE:
        return choice
    why = f"{choice.chosen} is faster by itself ({choice.why}), but the whole network is fastest when {whole}"
    return replace(choice, chosen=DENSE, why=why)


def _to_channels_last(tensor: Tensor) -> Tensor:
    memory_format = CHANNELS_LAST_FORMATS.get(tensor.ndim)
    return tensor if memory_format is None else tensor.contiguous(memory_format=memory_format)


def fold_norms(model: nn.Module, example: tuple[Tensor, ...]) -> nn.Module:
    """Return a copy with batch norms folded into the convolutions before them; the network if it cannot be recorded."""
    try:
        recording = record(model, example)
    except UnsupportedNetworkError:
        return model
    folded = independent_copy(model)
    for paths in _normed_layers(recording):
        layer, norm = (folded.get_submodule(path) for path in paths)
        if (fused := _fused(layer, norm)) is not None:
            layer.weight, layer.bias = fused.weight, fused.bias
            for name, module in list(folded.named_modules(remove_duplicate=False)):
                if module is norm:
                    folded.set_submodule(name, nn.Identity())
    return folded


def _normed_layers(recording: Recording) -> Iterator[tuple[str, str]]:
    """The names of convolutions and of the batch norms that alone read their results. Each is called once."""
    for node in recording.graph.find_nodes(op="call_function", target=torch.ops.aten.batch_norm.default):
        before = node.args[0]
        if not isinstance(before, fx.Node) or rule_of(before) is not contractions.convolution:
            continue
        own = [before.args[1], node.args[3]]
        names = [recording.tensors[each] for each in own if each in recording.tensors and len(each.users) == 1]
        if len(names) == 2 and len(before.users) == 1:
            layer, norm = (name.rpartition(".")[0] for name in names)
            yield layer, norm


def _fused(layer: nn.Module, norm: nn.Module) -> nn.Module | None:
    """Return a convolution and a batch norm with running statistics as one layer; None for other modules."""
    if not isinstance(layer, CONVOLUTIONS) or not isinstance(norm, NORMS) or norm.running_mean is None:
        return None
    is_plain = type(layer) in CONVOLUTIONS and type(norm) in NORMS and not has_hooks(layer) and not has_hooks(norm)
    return fuse_conv_bn_eval(layer, norm) if is_plain else None
