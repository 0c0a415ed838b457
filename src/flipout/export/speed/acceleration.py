"""The fastest network with the same outputs that can be found on this CPU, by measuring."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ...graph.comparison import Example, as_example, batch_of, inputs_like, own_copy, unlike
from ...graph.tracing import hooked
from ...graph.tracing_errors import first_line
from ...text_table import table
from ..compaction import described, smaller
from .interleaved_timing import Time, in_turn, interleaved, summary, timed
from .norm_folding import fold_norms
from .sparse_layers import SparseLayer, alternatives

SPARSE = 0.8
"""Layers with a smaller share of zeros are not tried."""
MARGIN = 0.95
"""Of the time of what is there already; what takes longer than this is not chosen."""
TOLERANCE = 1e-3
WARM_UP = 2
HOPELESS = 3.0
"""Times dense: what takes longer in the warm-up is not tried on."""
DENSE = "dense"
AS_IT_CAME, COMPACTED, FOLDED, CHANNELS_LAST, SPARSE_LAYERS = (
    "as it came",
    "compacted",
    "compacted, norms folded",
    "compacted, norms folded, channels last",
    "compacted, norms folded, sparse layers",
)


@dataclass(frozen=True)
class Choice:
    """What was chosen for a layer, or the whole network, why, and the milliseconds of everything that was tried."""

    name: str
    sparsity: float
    chosen: str
    why: str
    tried: dict[str, float]


class Choices(list[Choice]):
    """Every choice, printed as a table."""

    def __str__(self) -> str:
        rows = [(choice.name, f"{choice.sparsity:.2%}", choice.chosen, choice.why) for choice in self]
        return table(("layer", "zeros", "chosen", "why"), rows)


class Accelerated(nn.Module):
    """A network for inference, and in `choices` what it is made of and why. `notes` tells what was not possible."""

    def __init__(
        self, network: nn.Module, choices: Choices, example: tuple[Tensor, ...], *, channels_last: bool
    ) -> None:
        super().__init__()
        self.network, self.choices, self.channels_last = network, choices, channels_last
        self.sizes = [each.shape[1:] for each in example]
        self.notes: tuple[str, ...] = ()
        self.requires_grad_(False)
        self.eval()

    def forward(self, *inputs: Tensor) -> Any:
        if (sizes := [each.shape[1:] for each in inputs]) != self.sizes:
            wanted, given = (", ".join(str(tuple(size)) for size in each) for each in (self.sizes, sizes))
            raise ValueError(
                f"this network was accelerated for inputs of {wanted}, the batch aside, and these are of {given}: "
                "accelerate another with such an example"
            )
        with torch.no_grad():
            return self.network(*(_last(each) for each in inputs) if self.channels_last else inputs)

    def train(self, mode: bool = True) -> Accelerated:
        if mode:
            raise RuntimeError("an accelerated network is for inference: train the one it was made from")
        return super().train(mode)


@torch.no_grad()
def accelerate(model: nn.Module, example_input: Example, *, repetitions: int = 15) -> nn.Module:
    """The fastest equivalent of a network on this machine, for inputs like the example: same outputs to rounding.

    The network is compacted, batch norms are folded into the convolutions before them, and for each layer that is still
    very sparse a dense product is timed against sparse ones, in its place, while the network sees the example.
    At last the whole is timed against the network as it came; a bare copy of it comes back if nothing beats it by 5 %.
    Whichever it is, `choices` says what was chosen and why, and `notes` what was not possible.

    Args:
        model: the network, on the CPU; it stays as it is.
        example_input: what it is called with. Other batch sizes work too, but what is fastest for one image may not be
            for 32; inputs of another size than the example's, the batch aside, are an error.
        repetitions: of each trial.
    """
    example, original = as_example(example_input), own_copy(model).requires_grad_(False)
    if any(tensor.device.type != "cpu" for tensor in (*original.state_dict().values(), *example)):
        raise ValueError("accelerate measures on the CPU: give the network and the example with .cpu()")
    small, notes = smaller(original, example, fixed_size=True)
    folded = fold_norms(small, example)
    try:
        sparse, choices = _with_sparse_layers(folded, example, repetitions)
    except Exception as error:  # any code of the user's may run here, and may ask of a layer what only torch's own has
        sparse, choices = folded, Choices()
        notes.append(f"sparse layers could not be tried ({first_line(error)})")
    variants = {AS_IT_CAME: original, COMPACTED: small, FOLDED: folded}
    # torch's own name for the order of memory in which some convolutions are faster
    variants[CHANNELS_LAST] = copy.deepcopy(folded).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if any(choice.chosen != DENSE for choice in choices):
        variants[SPARSE_LAYERS] = sparse
    return _fastest(variants, choices, example, repetitions, tuple(notes))


class Trial(nn.Module):
    """In the place of a layer: runs it and its rivals in turn, and keeps the times.

    So each meets its weights as it will later, with all other layers of the network run since it saw them last. By
    itself, again and again, a layer finds them in the cache.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.rounds = layer, 0
        self.rivals: dict[str, nn.Module] = {}
        self.taken: dict[str, list[float]] = {}

    def __getattr__(self, name: str) -> Any:
        """What a network may ask of the layer, such as its weight."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)

    def forward(self, given: Tensor) -> Any:
        if not self.rivals:
            self.rivals = {DENSE: self.layer, **_equal_ones(self.layer, given)}
            self.taken = {name: [] for name in self.rivals}
        if self.rounds == WARM_UP:
            limit = HOPELESS * min(self.taken[DENSE])
            self.rivals = {name: rival for name, rival in self.rivals.items() if min(self.taken[name]) <= limit}
        order = in_turn(self.rivals, self.rounds)  # the first to run finds what it reads less warm
        self.rounds += 1
        for name in order:
            out, elapsed = timed(self.rivals[name], given)
            self.taken[name].append(elapsed)
        return out


def _with_sparse_layers(network: nn.Module, example: tuple[Tensor, ...], repetitions: int) -> tuple[nn.Module, Choices]:
    """A copy in which each very sparse layer is the fastest of its kind on what it reads."""
    sparse, choices = copy.deepcopy(network), Choices()
    trials = {name: Trial(layer) for name, layer in sparse.named_modules() if name and _worth_trying(layer)}
    for name, trial in trials.items():
        sparse.set_submodule(name, trial)
    for _ in range(WARM_UP + repetitions):
        sparse(*example)
    for name, trial in trials.items():
        times = {rival: summary(taken[WARM_UP:] or taken) for rival, taken in trial.taken.items()}
        chosen, tried = (_winner(times), _medians(times)) if times else (DENSE, {})
        sparse.set_submodule(name, trial.rivals.get(chosen, trial.layer))
        choices.append(Choice(name, _zeros(trial.layer), chosen, _why(chosen, tried), tried))
    return sparse, choices


def _worth_trying(layer: nn.Module) -> bool:
    # Not one of a class of its own, or with hooks, which would be lost.
    return type(layer) in (nn.Linear, nn.Conv2d) and not hooked(layer) and SPARSE <= _zeros(layer) < 1


def _medians(times: dict[str, Time]) -> dict[str, float]:
    return {name: time.median for name, time in times.items()}


def _equal_ones(layer: nn.Module, given: Tensor) -> dict[str, nn.Module]:
    """The sparse forms of a layer that this build of torch can run, and that give its outputs."""
    expected = layer(given)
    working: dict[str, nn.Module] = {}
    for name, rival in alternatives(layer, given).items():
        try:
            found = rival(given)
        except RuntimeError:  # sparse products are not in every build of torch
            continue
        if unlike(expected, found, TOLERANCE) is None:
            working[name] = rival
    return working


def _fastest(
    variants: dict[str, nn.Module],
    choices: Choices,
    example: tuple[Tensor, ...],
    repetitions: int,
    notes: tuple[str, ...],
) -> nn.Module:
    """The variant with the least time, unless the first is about as fast."""
    runs = {
        name: Accelerated(network, choices, example, channels_last=name == CHANNELS_LAST)
        for name, network in variants.items()
    }
    trials = [(example, runs[AS_IT_CAME](*example))]
    with contextlib.suppress(Exception):  # some networks do not take another batch size
        other = inputs_like(example, batch_of(example) + 1)
        trials.append((other, runs[AS_IT_CAME](*other)))
    runs = {name: run for name, run in runs.items() if name == AS_IT_CAME or _gives(run, trials)}
    works = {name: _call(run, example) for name, run in runs.items()}
    works[AS_IT_CAME] = _call(variants[AS_IT_CAME], example)  # without the wrapper, which takes its time too
    times = interleaved(works, repetitions)
    chosen = _winner(times)
    tried = _medians(times)
    if chosen != SPARSE_LAYERS:
        choices = Choices(_overruled(choice, chosen) for choice in choices)
    zeros = _zeros(runs[AS_IT_CAME])
    # Without a wrapper, which would make it slower than it came.
    fastest = variants[AS_IT_CAME] if chosen == AS_IT_CAME else runs[chosen]
    whole = Choice("the whole network", zeros, chosen, _why(chosen, tried), tried)
    return described(fastest, notes=notes, choices=Choices([*choices, whole]))


def _gives(run: nn.Module, trials: Sequence[tuple[tuple[Tensor, ...], Any]]) -> bool:
    """Whether a network runs on these inputs and gives these outputs."""
    try:
        return all(unlike(expected, run(*inputs), TOLERANCE) is None for inputs, expected in trials)
    except Exception:  # any code of the user's may run here
        return False


def _overruled(choice: Choice, chosen: str) -> Choice:
    if choice.chosen == DENSE:
        return choice
    why = f"{choice.chosen} is faster by itself ({choice.why}), but the whole network is fastest {chosen}"
    return replace(choice, chosen=DENSE, why=why)


def _winner(times: dict[str, Time]) -> str:
    """The least median if it beats the first by the margin, else the first."""
    first, least = next(iter(times)), min(times, key=lambda name: times[name].median)
    return least if times[least].median < MARGIN * times[first].median else first


def _why(chosen: str, tried: dict[str, float]) -> str:
    if not tried:
        return "the network does not call it"
    (first, time), *others = tried.items()
    if chosen != first:
        return f"{tried[chosen]:.3f} ms, {first} takes {time:.3f}"
    if not others:
        return "there is nothing else to try"
    rival, least = min(others, key=lambda other: other[1])
    return f"{time:.3f} ms, {rival} takes {least:.3f}"


def _call(network: nn.Module, inputs: tuple[Tensor, ...]) -> Callable[[], object]:
    return lambda: network(*inputs)


def _zeros(module: nn.Module) -> float:
    """The share of zeros in the weights of Linear and convolution layers."""
    weights = [
        layer.weight
        for layer in module.modules()
        if isinstance(layer, (nn.Linear, _ConvNd, SparseLayer)) and layer.weight.numel()
    ]
    total = sum(weight.numel() for weight in weights)
    return 1 - sum(int(weight.count_nonzero()) for weight in weights) / total if total else 0.0


def _last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor
