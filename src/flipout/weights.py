"""Weights: which weight tensors of a model are pruned, and what a pruner keeps for each."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .modules import (
    ChannelTally,
    adapter_paths,
    channels_of,
    groups_of,
    is_adapter,
    is_weight,
    parametrization,
    plain_name,
    refusal,
    unwrapped,
)
from .numerics import zero_pruned
from .problems import CoverageWarning, warn
from .ranking.across_ranks import total_counts
from .statistics import Statistic
from .views.dtensors import hint_for_shards
from .views.matching import gathered
from .views.shard import view_of

Predicate = Callable[[str, nn.Module, nn.Parameter], bool]
Patterns = str | Iterable[str] | Predicate
"""`"classifier.*"`, a list of such patterns, or a function `(name, module, parameter) -> bool`."""


@dataclass(eq=False)
class Weight:
    """A weight tensor that is pruned: its parameter, and the mask, statistics and slots that belong to its elements.

    Mask, statistics and slots are plain tensors for the elements that `view` says are here. `size` and `kept` count all
    elements of the original tensor. Its random numbers depend on `number`, its place among the parameters of the model.
    """

    name: str
    module: nn.Module
    parameter: nn.Parameter
    number: int = 0
    statistics: dict[str, Statistic] = field(default_factory=dict)
    slots: dict[str, Tensor] = field(default_factory=dict)
    """What the form keeps for each element, and for the weight as a whole. Empty until the form needs it."""

    def __post_init__(self) -> None:
        self.view = view_of(self.parameter, self.name)
        self.kept = self.size
        self.settled_version: tuple[int, ...] = ()
        """The version of the values after the last step."""
        self._groups = groups_of(self.module)  # those of the original network
        every = torch.ones((), dtype=torch.bool, device="cpu").expand(self.parameter.shape)
        self._channels = ChannelTally() if self.view.key is None else channels_of(every, self.module, self._groups)

    @cached_property
    def mask(self) -> Tensor:
        """True where a weight is kept. It is changed in place."""
        return torch.ones_like(self.local, dtype=torch.bool, requires_grad=False)

    @property
    def local(self) -> Tensor:
        """The values that are here, as a plain tensor: the parameter itself unless it is sharded."""
        return self.view.local(self.parameter)

    @property
    def grad(self) -> Tensor | None:
        """The gradient of `local`."""
        return self.view.grad(self.parameter)

    @property
    def size(self) -> int:
        """The number of elements of the original tensor."""
        return self.view.size

    @property
    def dense(self) -> bool:
        """Whether nothing is pruned, so that nothing needs masking."""
        return self.kept == self.size

    @property
    def bytes(self) -> Tensor:
        """The mask as bytes of 0 and 1."""
        return self.mask.view(torch.uint8)

    @property
    def channels(self) -> ChannelTally:
        """The channels of the tensor. Those of a sharded one were counted with its weights, so that one rank alone can
        ask for them."""
        if self.view.key is not None:
            return self._channels
        return channels_of(self.view.gather(self.mask), self.module, self._groups)

    def take(self, tensor: Tensor) -> Tensor:
        """The elements that are here, of a tensor of the original shape that may be sharded in any way."""
        return self.view.take(gathered(tensor) if self.view.key is None else tensor)

    def count_channels(self) -> None:
        """Count the channels of a sharded weight, together with the ranks that hold its other shards."""
        if self.view.key is not None:
            self._channels = channels_of(self.view.gather(self.mask), self.module, self._groups)

    def zero(self) -> None:
        """Zero the pruned weights."""
        zero_pruned(self.local, self.bytes)

    def clear(self, tensor: Tensor) -> None:
        """Zero a tensor of these elements in place where weights are pruned, even where it is NaN."""
        zero_pruned(tensor, self.bytes)


def count_weights(weights: Sequence[Weight]) -> None:
    """Count what each mask keeps, over all ranks, with one transfer from each device."""
    for weight, kept in zip(weights, count_marks([weight.mask for weight in weights], weights), strict=True):
        weight.kept = kept
        weight.count_channels()


def count_marks(marks: Sequence[Tensor], weights: Sequence[Weight]) -> list[int]:
    """The number of marked elements of each weight, from boolean tensors, over all ranks."""
    return total_counts(marks, [weight.view for weight in weights])


# Which weights.


def find_weights(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    include: Patterns | None,
    exclude: Patterns | None,
    *,
    adapters: bool = False,
) -> list[Weight]:
    """The weights to prune, each once however often it is tied, in the order of `model.named_parameters()`.

    By default the weights that are trained of Linear, convolution and recurrent modules and of
    `nn.MultiheadAttention`, and of Conv1D and stacked experts of transformers, but those of LoRA adapters only with
    `adapters`. `include` selects other ones instead: the matrices and kernels it matches, and vectors (biases, norms)
    only by their full name or if it matches nothing else. `exclude` leaves weights out. A shared weight matches by each
    of its names. The optimizer must hold all of them; None if nothing is trained.

    Weights that are computed by a parametrization are left out, and a `CoverageWarning` names them.
    """
    trained = _trained(model, include, exclude, adapters)
    _check(trained, optimizer)
    if include is None:
        _warn_of_parametrizations(model, exclude)
    return [Weight(c.names[0], c.modules[0], c.parameter, c.number) for c in trained]


def select_weights(
    model: nn.Module, include: Patterns | None, exclude: Patterns | None
) -> list[tuple[str, nn.Parameter]]:
    """The names and parameters that `find_weights` selects, whichever optimizer holds them. It does not warn."""
    return [(c.names[0], c.parameter) for c in _trained(model, include, exclude)]


def _trained(
    model: nn.Module, include: Patterns | None, exclude: Patterns | None, adapters: bool = False
) -> list[Candidate]:
    every = list(candidates(model))
    if lazy := [name for c in every if is_lazy(c.parameter) for name in c.names[:1]]:
        raise ValueError(f"{', '.join(lazy)} has no shape yet: call the model once, so that its lazy modules get one")
    usual = [c for c in every if c.usual and (adapters or not c.adapter)]
    wanted = usual if include is None else _included(every, _read(include, "include"))
    unwanted = _excluded_numbers(every, exclude)
    chosen = [c for c in wanted if c.number not in unwanted]
    trained = [c for c in chosen if c.parameter.requires_grad]
    for c in every:
        if include is None and c.refusal and c.parameter.requires_grad and c.number not in unwanted:
            raise ValueError(c.refusal)
    if not sum(c.parameter.numel() for c in trained):
        frozen = f" ({len(chosen)} matched, but are frozen or of size zero)" if chosen else ""
        excluded = ", without those that exclude= matches" if wanted and not chosen else ""
        left = any(c.usual and c.adapter and c.parameter.requires_grad for c in every) and include is None
        lora = ". Adapters (LoRA) are left alone: to prune the network below them, make its weights trainable"
        reasons = dict.fromkeys(c.computed for c in every if c.computed and include is None)
        computed = "".join(f". {reason}" for reason in reasons)
        raise ValueError(
            f"there is nothing to prune in {type(unwrapped(model)).__name__}{frozen}: by default the trained weights "
            f"of Linear, convolution, attention and recurrent modules are pruned{excluded}; select others with "
            f"include={lora if left else ''}{computed}"
        )
    return trained


def _warn_of_parametrizations(model: nn.Module, exclude: Patterns | None) -> None:
    """Name the weights that are left out because they are computed."""
    every = list(candidates(model))
    unwanted = _excluded_numbers(every, exclude)
    computed = [c.computed for c in every if c.parameter.requires_grad and c.number not in unwanted]
    reasons = list(dict.fromkeys(reason for reason in computed if reason))
    if reasons:
        more = f"\n  {len(reasons) - SHOWN} more" if len(reasons) > SHOWN else ""
        listed = "".join(f"\n  {reason}" for reason in reasons[:SHOWN])
        warn(
            f"some weights are left out. Name them in exclude= to silence this warning:{listed}{more}", CoverageWarning
        )


def _excluded_numbers(every: list[Candidate], exclude: Patterns | None) -> set[int]:
    """The numbers of the parameters that `exclude` matches."""
    return {c.number for c in _matching(every, [] if exclude is None else _read(exclude, "exclude"), "exclude")}


class Candidate(NamedTuple):
    """A parameter: its names, the modules that hold it, its number in the model, and what it is.

    A usual one is pruned by default, unless it belongs to an adapter. `refusal` says why the model cannot be pruned
    with it, and `computed` why the weight that is computed from it is left out.
    """

    names: list[str]
    modules: list[nn.Module]
    parameter: nn.Parameter
    number: int
    usual: bool
    adapter: bool
    refusal: str | None
    computed: str | None

    @property
    def kind(self) -> str:
        """What a parameter is that no pruner covers."""
        if self.parameter.ndim < 2:
            return "vector"
        if any(isinstance(module, (nn.Embedding, nn.EmbeddingBag)) for module in self.modules):
            return "embedding"
        if self.adapter:
            return "adapter"
        if self.computed:
            return "parametrized"
        return "matrix" if self.parameter.requires_grad else "frozen"


def candidates(model: nn.Module) -> Iterator[Candidate]:
    """Every parameter once. It is usual only if it is a weight of every module that holds it."""
    inner = unwrapped(model)
    # The module inside a compiled one follows it under the same name and replaces it.
    modules = {plain_name(f"{name}.")[:-1]: module for name, module in inner.named_modules(remove_duplicate=False)}
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in inner.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(plain_name(name))
    added = adapter_paths(modules)
    for number, (parameter, own) in enumerate(names.items()):
        holders = [modules[name.rpartition(".")[0]] for name in own]
        usual = all(is_weight(name, holder, modules) for name, holder in zip(own, holders, strict=True))
        adapter = any(is_adapter(name, added) for name in own)
        computed = parametrization(own[0], holders[0], modules)
        yield Candidate(own, holders, parameter, number, usual, adapter, refusal(own[0], holders[0]), computed)


def _read(patterns: Patterns, argument: str) -> Predicate | list[str]:
    """What a user passed as `include` or `exclude`: a function, or patterns."""
    if callable(patterns):
        return patterns
    listed = [patterns] if isinstance(patterns, str) or not isinstance(patterns, Iterable) else list(patterns)
    if not all(isinstance(pattern, str) for pattern in listed):
        raise TypeError(
            f"{argument} is {patterns!r}; give a name pattern such as 'classifier.*', a list of patterns, or a "
            "function (name, module, parameter) -> bool"
        )
    return listed


def _included(every: list[Candidate], include: Predicate | list[str]) -> list[Candidate]:
    matched = _matching(every, include, "include")
    exact = set() if callable(include) else set(include)
    return [c for c in matched if c.parameter.ndim > 1 or not exact.isdisjoint(c.names)] or matched


def _matching(every: list[Candidate], patterns: Predicate | list[str], argument: str) -> list[Candidate]:
    if callable(patterns):
        return [c for c in every if any(map(patterns, c.names, c.modules, [c.parameter] * len(c.names)))]
    for pattern in patterns:
        if not any(_matches(c, pattern) for c in every):
            names = [name for c in every for name in c.names]
            near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.3) or names[:3]
            raise ValueError(f"{argument}={pattern!r} matches no parameter; similar names are {', '.join(near)}")
    return [c for c in every if any(_matches(c, pattern) for pattern in patterns)]


def _matches(candidate: Candidate, pattern: str) -> bool:
    return any(matches(name, pattern) for name in candidate.names)


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern matches the name of a parameter, or of a module that holds it at any depth."""
    return any(fnmatchcase(name[:end], pattern) for end in [*_dots(name), len(name)])


def _dots(name: str) -> list[int]:
    return [i for i, letter in enumerate(name) if letter == "."]


def _check(trained: list[Candidate], optimizer: torch.optim.Optimizer | None) -> None:
    if empty := [c.names[0] for c in trained if c.parameter.is_meta]:
        raise ValueError(
            f"{', '.join(empty[:SHOWN])} is on the device meta, without values: give the model its values first, with "
            "to_empty() and an initialization, or by loading weights"
        )
    if frozen := [c.names[0] for c in trained if c.parameter.is_inference()]:
        raise ValueError(
            f"{', '.join(frozen)} was created under torch.inference_mode() and cannot be trained: create or load the "
            "model without it"
        )
    if optimizer is not None:
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if foreign := [c.names[0] for c in trained if id(c.parameter) not in held]:
            raise ValueError(
                f"the optimizer does not hold {', '.join(foreign)}: pass it these weights, or leave them out with "
                "exclude=" + hint_for_shards([c.parameter for c in trained], optimizer)
            )
    if odd := [c.names[0] for c in trained if not c.parameter.is_floating_point()]:
        raise ValueError(f"only real floating-point weights can be pruned; leave out {', '.join(odd)} with exclude=")


# How much of a model they are.

SHOWN = 6
"""How many parameters a text names."""

LITTLE = 0.5
"""A pruner that covers less than this share of the matrix weights warns."""


@dataclass(frozen=True)
class LeftOut:
    """A parameter that a pruner does not cover.

    `kind` is "matrix", "embedding", "adapter", "parametrized", "frozen", or "vector" for biases, norms and scalars.
    """

    name: str
    size: int
    kind: str

    def __str__(self) -> str:
        return f"{self.name} ({self.size:,}{'' if self.kind == 'matrix' else f', {self.kind}'})"


@dataclass(frozen=True)
class Coverage:
    """How many parameters of a model a pruner covers; prints as a sentence."""

    covered: int
    parameters: int
    left_out: tuple[LeftOut, ...]

    @property
    def share(self) -> float:
        return self.covered / self.parameters if self.parameters else 0.0

    def __str__(self) -> str:
        text = f"{self.covered:,} of {self.parameters:,} parameters ({self.share:.1%})"
        vectors = [each.size for each in self.left_out if each.kind == "vector"]
        others = sorted((each for each in self.left_out if each.kind != "vector"), key=lambda each: -each.size)
        named = [str(each) for each in others[:SHOWN]]
        if len(others) > SHOWN:
            named.append(f"{len(others) - SHOWN} more ({sum(each.size for each in others[SHOWN:]):,})")
        if vectors:
            named.append(f"biases, norms and scalars ({sum(vectors):,})")
        return f"{text}; left out: {', '.join(named)}" if named else text


def coverage_of(
    model: nn.Module, weights: Sequence[Weight], shapes: Mapping[str, torch.Size] | None = None
) -> Coverage:
    """What the weights of a pruner are of a model. `shapes` are the original ones of tensors that were cut."""
    sizes = {id(weight.parameter): weight.size for weight in weights}
    original = {name: shape.numel() for name, shape in (shapes or {}).items()}
    left = tuple(
        LeftOut(c.names[0], original.get(c.names[0], c.parameter.numel()), c.kind)
        for c in candidates(model)
        if id(c.parameter) not in sizes
    )
    covered = sum(sizes.values())
    return Coverage(covered, covered + sum(each.size for each in left), left)


def warn_of_low_coverage(
    model: nn.Module, weights: Sequence[Weight], include: Patterns | None, exclude: Patterns | None
) -> None:
    """Warn if a default selection covers less than half of the weights that are matrices.

    Embeddings, adapters, parametrized and frozen weights are left out for a reason, and what `exclude` matches on
    purpose: they do not count.
    """
    if include is not None:
        return
    every = list(candidates(model))
    mine, unwanted = {id(weight.parameter) for weight in weights}, _excluded_numbers(every, exclude)
    covered = sum(weight.size for weight in weights)
    missed = [c for c in every if id(c.parameter) not in mine and c.number not in unwanted and c.kind == "matrix"]
    if covered >= LITTLE * (covered + sum(c.parameter.numel() for c in missed)):
        return
    warn(
        f"this pruner covers {coverage_of(model, weights)}. By default the weights of modules that torch has are "
        "pruned. Select others with include=, such as include='*' for all matrices, or leave them out with exclude= to "
        "silence this warning",
        CoverageWarning,
    )
