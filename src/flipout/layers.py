"""Which weights of a model are pruned, and the mask and statistics of each."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple

import torch
from torch import nn

from .hidden_values import HiddenValues
from .modules import ChannelTally, adapter_paths, channels_of, is_adapter, is_weight, plain_name, refusal, unwrapped
from .numerics import zero_pruned
from .positions import Positions
from .selection.across_ranks import total_counts
from .shards.local_tensors import align_gradient, hint_for_shards, local_of
from .shards.matching import whole
from .shards.parts import part_of
from .statistics import Statistic

Predicate = Callable[[str, nn.Module, nn.Parameter], bool]
Patterns = str | Iterable[str] | Predicate
"""`"classifier.*"`, a list of such patterns, or a function `(name, module, parameter) -> bool`."""


@dataclass(eq=False)
class Layer:
    """A weight tensor to prune: its name, its module, its number among the parameters of the model (which its random
    numbers depend on), its mask, the positions of its elements in the original tensor, its statistics, and its hidden
    values while pruned weights may come back.

    A sharded weight is a DTensor. Its mask, its statistics and its hidden values are plain tensors for the part that
    this rank holds, and `size` and `kept` are those of the whole weight.
    """

    name: str
    module: nn.Module
    weight: nn.Parameter
    number: int = 0
    statistics: dict[str, Statistic] = field(default_factory=dict)
    hidden: HiddenValues | None = None

    def __post_init__(self) -> None:
        self.part = part_of(self.weight, self.name)
        """What this rank holds of a sharded weight; None for an ordinary one."""
        self.positions = Positions.all_of(self.weight.shape) if self.part is None else self.part.positions
        self.mask = torch.ones_like(self.local, dtype=torch.bool, requires_grad=False)
        self.kept = self.size
        self.parked: Layer | None = None
        """The weights of this layer that are kept, but not in the network while it is shrunk."""
        self._version = 0
        every = torch.ones((), dtype=torch.bool, device="cpu").expand(self.weight.shape)
        self._channels = ChannelTally() if self.part is None else channels_of(every, self.module)

    @property
    def local(self) -> torch.Tensor:
        """The plain tensor that this rank holds of the weight: the weight itself, unless it is sharded."""
        return self.weight if self.part is None else local_of(self.weight)

    def as_weight(self, local: torch.Tensor) -> torch.Tensor:
        """A tensor of the elements that this rank holds, as a tensor of the weight's kind: a DTensor if it is one."""
        return local if self.part is None else self.part.wrap(local)

    def part_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The elements that this rank holds, of a tensor of the weight's shape that may be sharded in any way."""
        return whole(tensor) if self.part is None else self.part.part_of(tensor)

    @property
    def grad(self) -> torch.Tensor | None:
        """The gradient of `local`."""
        return None if self.weight.grad is None else local_of(self.weight.grad)

    @property
    def size(self) -> int:
        """The number of elements of the weight, on all ranks."""
        return self.weight.numel()

    @property
    def channels(self) -> ChannelTally:
        """The channels of the whole weight. Those of a sharded one were counted with its weights, so that one rank
        alone can ask for them."""
        return channels_of(self.mask, self.module) if self.part is None else self._channels

    @property
    def dense(self) -> bool:
        """Whether nothing is pruned, so that nothing needs masking."""
        return self.kept == self.size

    @property
    def learning(self) -> torch.Tensor:
        """The mask of the weights that the optimizer changes: all of them where pruned weights have hidden values."""
        if self.hidden is None:
            return self.mask
        return torch.ones((), dtype=torch.bool, device=self.mask.device).expand(self.mask.shape)

    @property
    def bytes(self) -> torch.Tensor:
        """The mask as bytes of 0 and 1."""
        return self.mask.view(torch.uint8)

    def prepare_shard(self) -> None:
        """Called before a step: bring the gradient of a sharded weight into its layout, and mark `local` as changed if
        something other than a step has changed the DTensor (torch counts these changes for the DTensor alone)."""
        if self.part is not None:
            align_gradient(self.weight)
            if self.weight._version != self._version:
                torch.autograd.graph.increment_version(self.local)

    def settled(self) -> None:
        """Called after a step, when pruned weights are zero again."""
        self._version = self.weight._version
        for statistic in self.statistics.values():
            statistic.settled(self.local)

    def count(self) -> int:
        """Count the weights that the mask keeps, over all ranks."""
        count_layers([self])
        return self.kept

    def count_channels(self) -> None:
        """Count the channels of a sharded weight, together with the ranks that hold its other parts."""
        if self.part is not None:
            self._channels = channels_of(self.part.gather(self.mask), self.module)

    def zero(self) -> None:
        """Zero the pruned weights."""
        self.clear(self.local)

    def clear(self, tensor: torch.Tensor) -> None:
        """Zero a tensor in place where weights are pruned, even where it is NaN."""
        zero_pruned(tensor, self.bytes)


def count_layers(layers: Sequence[Layer]) -> None:
    """Count the weights that each mask keeps, over all ranks, with one transfer from each device."""
    for layer, kept in zip(layers, count_marks([layer.mask for layer in layers], layers), strict=True):
        layer.kept = kept
        layer.count_channels()


def count_marks(marks: Sequence[torch.Tensor], layers: Sequence[Layer]) -> list[int]:
    """The number of marked elements of each boolean tensor of a layer, over all ranks."""
    return total_counts(marks, [layer.part for layer in layers])


def find_layers(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    include: Patterns | None,
    exclude: Patterns | None,
    *,
    adapters: bool = False,
) -> list[Layer]:
    """The weights to prune, each once however often it is tied, in the order of `model.named_parameters()`.

    By default the `weight` of every Linear and convolution module that is trained, and of Hugging Face's Conv1D, but
    those of LoRA adapters only with `adapters`. `include` selects other ones instead: the matrices and kernels it
    matches, and vectors (biases, norms) only by their full name or if it matches nothing else. `exclude` leaves weights
    out. A shared weight matches by each of its names.
    """
    trained = _trained(model, include, exclude, adapters)
    _check(trained, optimizer)
    return [Layer(c.names[0], c.modules[0], c.weight, c.number) for c in trained]


def select_weights(
    model: nn.Module, include: Patterns | None, exclude: Patterns | None
) -> list[tuple[str, nn.Parameter]]:
    """The names and parameters that `find_layers` selects, whichever optimizer holds them."""
    return [(c.names[0], c.weight) for c in _trained(model, include, exclude)]


def _trained(
    model: nn.Module, include: Patterns | None, exclude: Patterns | None, adapters: bool = False
) -> list[Candidate]:
    every = list(candidates(model))
    usual = [c for c in every if c.usual and (adapters or not c.adapter)]
    wanted = usual if include is None else _included(every, _read(include, "include"))
    unwanted = excluded_numbers(every, exclude)
    chosen = [c for c in wanted if c.number not in unwanted]
    trained = [c for c in chosen if c.weight.requires_grad]
    for c in every:
        if include is None and c.refusal and c.weight.requires_grad and c.number not in unwanted:
            raise ValueError(c.refusal)
    if not sum(c.weight.numel() for c in trained):
        frozen = f" ({len(chosen)} matched, but are frozen or of size zero)" if chosen else ""
        excluded = ", without those that exclude= matches" if wanted and not chosen else ""
        left = any(c.usual and c.adapter and c.weight.requires_grad for c in every) and include is None
        lora = ". Adapters (LoRA) are left alone: to prune the network below them, make its weights trainable"
        raise ValueError(
            f"there is nothing to prune in {type(unwrapped(model)).__name__}{frozen}: by default the trained weights "
            f"of Linear and convolution modules are pruned{excluded}; select others with include={lora if left else ''}"
        )
    return trained


def excluded_numbers(every: list[Candidate], exclude: Patterns | None) -> set[int]:
    """The numbers of the parameters that `exclude` matches."""
    return {c.number for c in _matching(every, [] if exclude is None else _read(exclude, "exclude"), "exclude")}


class Candidate(NamedTuple):
    """A parameter: its names, the modules that hold it, its number in the model, and what it is.

    A usual one is pruned by default, unless it belongs to an adapter. `refusal` says why one that looks like a weight
    cannot be pruned.
    """

    names: list[str]
    modules: list[nn.Module]
    weight: nn.Parameter
    number: int
    usual: bool
    adapter: bool
    refusal: str | None


def candidates(model: nn.Module) -> Iterator[Candidate]:
    """Every parameter once. It is usual only if every module that holds it is linear or a convolution."""
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
        yield Candidate(own, holders, parameter, number, usual, adapter, refusal(own[0], holders[0], modules))


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
    return [c for c in matched if c.weight.ndim > 1 or not exact.isdisjoint(c.names)] or matched


def _matching(every: list[Candidate], patterns: Predicate | list[str], argument: str) -> list[Candidate]:
    if callable(patterns):
        return [c for c in every if any(map(patterns, c.names, c.modules, [c.weight] * len(c.names)))]
    for pattern in patterns:
        if not any(_matches(c, pattern) for c in every):
            names = [name for c in every for name in c.names]
            near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.3) or names[:3]
            raise ValueError(f"{argument}={pattern!r} matches no parameter; similar names are {', '.join(near)}")
    return [c for c in every if any(_matches(c, pattern) for pattern in patterns)]


def _matches(candidate: Candidate, pattern: str) -> bool:
    """Whether a pattern matches a parameter, or a module that holds it at any depth."""
    return any(fnmatchcase(name[:end], pattern) for name in candidate.names for end in _ends(name))


def _ends(name: str) -> list[int]:
    return [*(i for i, letter in enumerate(name) if letter == "."), len(name)]


def refuse_inference_mode() -> None:
    """Refuse to attach where torch records nothing that training needs."""
    if torch.is_inference_mode_enabled():
        raise RuntimeError("a pruner cannot be attached under torch.inference_mode(); attach it outside of it")


def _check(trained: list[Candidate], optimizer: torch.optim.Optimizer) -> None:
    if frozen := [c.names[0] for c in trained if c.weight.is_inference()]:
        raise ValueError(
            f"{', '.join(frozen)} was created under torch.inference_mode() and cannot be trained: create or load the "
            "model outside of it"
        )
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if foreign := [c.names[0] for c in trained if id(c.weight) not in held]:
        raise ValueError(
            f"the optimizer does not hold {', '.join(foreign)}: pass it these weights, or leave them out with exclude="
            + hint_for_shards([c.weight for c in trained], optimizer)
        )
    if odd := [c.names[0] for c in trained if not c.weight.is_floating_point()]:
        raise ValueError(f"only real floating-point weights can be pruned; leave out {', '.join(odd)} with exclude=")
