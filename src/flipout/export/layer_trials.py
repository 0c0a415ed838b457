"""Time sparse forms of each layer inside the running network, and choose the fastest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ..channels.comparison import describe_difference
from ..channels.copies import has_hooks, independent_copy
from ..kernels.direct_layers import direct_layer
from ..kernels.fusion import fuse
from ..text_table import table
from .sparse_layers import SparseLayer, sparse_forms
from .timing import Timing, rotated, summarize_times, time_call

MIN_SPARSITY = 0.5
"""Layers with a smaller share of zeros are not tried."""
WARM_UP = 2
GIVE_UP_RATIO = 3.0
"""A form that takes more than this many times as long as the dense layer in the warm-up is not timed further."""
FORM_TOLERANCE = 1e-3
"""The largest difference of outputs that is accepted, relative to the size of the outputs."""
DENSE = "dense"
MIN_SPEEDUP_RATIO = 0.95
"""An alternative is chosen only if it takes less than this share of the time of the first form."""


@dataclass(frozen=True)
class AccelerationChoice:
    """The form that was chosen for a layer or for the whole network.

    Args:
        name: the name of the layer.
        sparsity: the share of zeros among its weights.
        chosen: the form that was chosen.
        why: the reason.
        tried: the median time of each form that was tried, in milliseconds.
    """

    name: str
    sparsity: float
    chosen: str
    why: str
    tried: dict[str, float]


class AccelerationChoices(list[AccelerationChoice]):
    """All choices; prints as a table."""

    def __str__(self) -> str:
        rows = [(choice.name, f"{choice.sparsity:.2%}", choice.chosen, choice.why) for choice in self]
        return table(("layer", "zeros", "chosen", "why"), rows)


def choose_form(name: str, sparsity: float, times: dict[str, Timing]) -> AccelerationChoice:
    """Choose the fastest of the forms that were timed; the first is the one to beat."""
    chosen = fastest_or_first(times)
    tried = {form: time.median for form, time in times.items()}
    return AccelerationChoice(name, sparsity, chosen, _explain(chosen, tried), tried)


def fastest_or_first(times: dict[str, Timing]) -> str:
    """Return the form with the smallest median if it beats the first by the margin, else the first."""
    first, fastest = next(iter(times)), min(times, key=lambda name: times[name].median)
    return fastest if times[fastest].median < MIN_SPEEDUP_RATIO * times[first].median else first


def _explain(chosen: str, tried: dict[str, float]) -> str:
    (first, time), *others = tried.items()
    if chosen != first:
        return f"{tried[chosen]:.3f} ms, {first} takes {time:.3f}"
    if not others:
        return "there is no alternative"
    alternative, fastest = min(others, key=lambda other: other[1])
    return f"{time:.3f} ms, {alternative} takes {fastest:.3f}"


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
    direct = direct_layer(layer)
    forms: dict[str, nn.Module] = {} if direct is None else {"direct sparse": direct}
    if direct is None or isinstance(layer, nn.Linear):  # a linear layer may have blocks
        forms |= sparse_forms(layer, given)
    for name, form in forms.items():
        try:
            found = form(given)
        except RuntimeError:  # not every build of torch has sparse products
            continue
        if describe_difference(expected, found, FORM_TOLERANCE) is None:
            working[name] = form
    return working
