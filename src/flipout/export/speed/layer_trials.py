"""Time sparse forms of each layer inside the running network, and keep the fastest."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ...graph.comparison import describe_difference
from ...graph.model_copies import independent_copy
from ...graph.tracing import has_hooks
from ...kernels.direct_layers import direct_forms
from ...kernels.fusion import fuse
from .acceleration_choices import AccelerationChoice, AccelerationChoices, choose_form
from .interleaved_timing import rotated, summarize_times, time_call
from .sparse_layers import SparseLayer, sparse_forms

MIN_SPARSITY = 0.5
"""Layers with a smaller share of zeros are not tried."""
WARM_UP = 2
GIVE_UP_RATIO = 3.0
"""A form that takes more than this many times as long as the dense layer in the warm-up is not timed further."""
FORM_TOLERANCE = 1e-3
"""The largest difference of outputs that is accepted, relative to the size of the outputs."""
DENSE = "dense"


def with_sparse_layers(
    network: nn.Module, example: tuple[Tensor, ...], repetitions: int
) -> tuple[nn.Module, AccelerationChoices]:
    """Return a copy of the network in which each very sparse layer has its fastest form, and the choices."""
    sparse, choices = independent_copy(network), AccelerationChoices()
    trials = {name: LayerTrial(layer) for name, layer in sparse.named_modules() if name and _is_worth_trying(layer)}
    for name, trial in trials.items():
        sparse.set_submodule(name, trial)
    for _ in range(WARM_UP + repetitions):
        sparse(*example)
    for name, trial in trials.items():
        times = {form: summarize_times(taken[WARM_UP:] or taken) for form, taken in trial.times.items()}
        sparsity = zero_share(trial.layer)
        if times:
            choice = choose_form(name, sparsity, times)
        else:
            choice = AccelerationChoice(name, sparsity, DENSE, "the network does not call it", {})
        sparse.set_submodule(name, trial.forms.get(choice.chosen, trial.layer))
        choices.append(choice)
    return fuse(sparse), choices


class LayerTrial(nn.Module):
    """Replaces a layer in the running network, and times the layer and its sparse forms in rotation.

    So each form meets the cache as it will in use, after all other layers have run. Timed alone, again and again, a
    layer would find its weights in the cache.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.rounds = layer, 0
        self.forms: dict[str, nn.Module] = {}
        self.times: dict[str, list[float]] = {}

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the layer, such as its weight, which the network may read."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)

    def forward(self, given: Tensor) -> Any:
        if not self.forms:
            self.forms = {DENSE: self.layer, **_equivalent_forms(self.layer, given)}
            self.times = {name: [] for name in self.forms}
        if self.rounds == WARM_UP:
            limit = GIVE_UP_RATIO * min(self.times[DENSE])
            self.forms = {name: form for name, form in self.forms.items() if min(self.times[name]) <= limit}
        order = rotated(self.forms, self.rounds)  # the first to run finds its input less warm in the cache
        self.rounds += 1
        for name in order:
            out, elapsed = time_call(self.forms[name], given)
            self.times[name].append(elapsed)
        return out


def zero_share(module: nn.Module) -> float:
    """Return the share of zeros among the weights of all Linear and convolution layers."""
    weights = [
        layer.weight
        for layer in module.modules()
        if isinstance(layer, (nn.Linear, _ConvNd, SparseLayer)) and layer.weight.numel()
    ]
    total = sum(weight.numel() for weight in weights)
    return 1 - sum(int(weight.count_nonzero()) for weight in weights) / total if total else 0.0


def _is_worth_trying(layer: nn.Module) -> bool:
    # A subclass may compute something else, and hooks would be lost.
    is_plain = type(layer) in (nn.Linear, nn.Conv1d, nn.Conv2d) and not has_hooks(layer)
    return is_plain and MIN_SPARSITY <= zero_share(layer) < 1


def _equivalent_forms(layer: nn.Module, given: Tensor) -> dict[str, nn.Module]:
    """Return the sparse forms of a layer that run with this build of torch and have the same outputs."""
    expected = layer(given)
    working: dict[str, nn.Module] = {}
    forms = direct_forms(layer)
    if not forms or isinstance(layer, nn.Linear):  # a linear layer may have blocks
        forms |= sparse_forms(layer, given)
    for name, form in forms.items():
        try:
            found = form(given)
        except RuntimeError:  # not every build of torch has sparse products
            continue
        if describe_difference(expected, found, FORM_TOLERANCE) is None:
            working[name] = form
    return working
