"""Tries on copies: which channels a network of its own class can lose, with the same outputs."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .comparison import batch_size, coarsest_epsilon, describe_difference, inputs_like, tensors_of
from .copies import UnsupportedNetworkError, first_line, independent_copy
from .graph import ChannelGraph
from .record import without_cache
from .resize import Places, changed_sizes, families, guesses, resize, restated_in

HEARD = "a norm reads channels that cannot be made zero"


@dataclass(frozen=True)
class Removal:
    """What a network can lose.

    Args:
        sets: a flag for each set.
        follows: the attributes of modules that follow their sizes.
    """

    sets: Tensor
    follows: Places


class Trial:
    """Removes sets of channels from copies of a network, and compares.

    Args:
        model: the network, in evaluation mode; it is not changed.
        graph: its channels.
        args: the positional arguments of a call.
        kwargs: its keyword arguments.
    """

    def __init__(
        self, model: nn.Module, graph: ChannelGraph, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
    ) -> None:
        self.model, self.graph, self.problems = model, graph, list[str]()
        try:
            self._comparison = Comparison(model, args, kwargs or {})
        except Exception as error:  # the user's code may raise any error
            raise UnsupportedNetworkError(f"the network does not run with the example ({first_line(error)})") from error

    def smaller(self, removal: Removal) -> nn.Module | None:
        """A copy of the network without some sets; None if it computes something else. `problems` has the reason."""
        kept, smaller = ~removal.sets, independent_copy(self.model)
        attributes = restated_in(smaller, changed_sizes(self.graph, kept), removal.follows)
        resize(smaller, self.graph.remainder(kept), attributes, self.graph.narrowed(kept))
        try:
            self._comparison.verify(smaller)
        except UnsupportedNetworkError as error:
            self.problems.append(str(error))
            return None
        return smaller

    def largest(self, removed: Tensor) -> Removal:
        """As much of some sets as the network can lose, family by family."""
        return self._extended(Removal(torch.zeros_like(removed), frozenset()), families(self.graph, removed))

    def _extended(self, base: Removal, groups: Sequence[Tensor]) -> Removal:
        """What can be removed, and as many groups in addition as the network can lose."""
        if not groups:
            return base
        added = torch.stack(list(groups)).any(0)
        sizes = changed_sizes(self.graph, ~added)
        for follows in guesses(self.model, sizes, base.follows, single=len(groups) == 1):
            removal = Removal(base.sets | added, base.follows | follows)
            if self.smaller(removal) is not None:
                return removal
        half = len(groups) // 2
        return self._extended(self._extended(base, groups[:half]), groups[half:]) if half else base

    def notes(self, removed: Tensor, best: Tensor) -> list[str]:
        """Which weights keep channels that nothing reads, and why."""
        left = removed & ~best
        tensors = self.graph.tensors
        names = [name for name, dims in tensors.items() if len(dims) > 1 and any(left[dim].any() for dim in dims)]
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        return [f"channels that nothing reads stay in {shown}: {self.problems[0]}"] if names else []


class Comparison:
    """The outputs of a network for calls like an example, on random inputs and other batch sizes, to compare others
    with.

    Args:
        model: the network, in evaluation mode.
        args: the positional arguments of a call.
        kwargs: its keyword arguments.
    """

    def __init__(self, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._given = args, kwargs
        self._model = ByPosition(model, *self._given)
        self.example = example = tensors_of((tuple(args), dict(kwargs)))
        """The tensors of the example, in a batch of at least two where the network accepts that."""
        self._expected = [(example, _run(self._model, example))]
        if example[0].shape[:1] == (1,):
            twice = tuple(torch.cat([each, each]) if each.ndim else each for each in example)
            if self._add(twice):
                self.example = twice  # with a batch of one, any axis of size 1 could be taken for the batch
        self._add(tuple(torch.randn_like(each) if each.is_floating_point() else each for each in example))
        with contextlib.suppress(ValueError, IndexError):
            self._add(inputs_like(example, batch_size(example) + 7))  # a network may treat large batches differently

    def _add(self, inputs: tuple[Tensor, ...]) -> bool:
        """Record the outputs for these inputs; return whether the network accepts them."""
        try:
            self._expected.append((inputs, _run(self._model, inputs)))
        except Exception:  # the user's code may reject the inputs with any error
            return False
        return True

    def verify(self, model: nn.Module) -> None:
        """Raise an error if another network has different outputs."""
        network = ByPosition(model, *self._given)
        for inputs, expected in self._expected:
            tolerance = coarsest_epsilon(expected) ** 0.4  # 5e-7 in float64
            try:
                difference = describe_difference(expected, _run(network, inputs), tolerance, global_share=1e-3)
            except Exception as error:  # the compacted network may not run at all
                raise UnsupportedNetworkError(f"the compacted network failed ({first_line(error)})") from error
            if difference:
                raise UnsupportedNetworkError(f"the compacted network has different outputs ({difference})")


@torch.no_grad()
def _run(model: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # some networks draw random numbers even in evaluation mode
        return model(*copy.deepcopy(inputs))


class ByPosition(nn.Module):
    """Calls a network with the tensors of an example replaced, wherever they are among its arguments."""

    def __init__(self, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.leaves, self.spec = pytree.tree_flatten((tuple(args), dict(kwargs)))

    def forward(self, *tensors: Tensor) -> Any:
        rest = iter(tensors)
        leaves = [next(rest) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        with without_cache(self.model):
            return self.model(*args, **kwargs)


@dataclass(frozen=True)
class Removable:
    """Which sets of a network can be removed.

    Args:
        sets: a flag for each set.
        follows: the attributes of modules that follow their sizes.
        problem: why others cannot be removed; empty if all can.
    """

    sets: Tensor
    follows: Places
    problem: str


@torch.no_grad()
def removable(model: nn.Module, graph: ChannelGraph, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Removable:
    """Find which sets of a network can be removed once nothing reads them.

    It is tried with a part of every family, of another size in each, on a copy in which nothing reads them.
    """
    chosen = torch.zeros(graph.size, dtype=torch.bool)
    for flags in graph.read.values():
        chosen |= flags
    chosen[0] = False
    tried, groups = torch.zeros_like(chosen), families(graph, chosen)
    for number, family in enumerate(groups):
        members = family.nonzero().flatten()
        tried[members[number % 2 :: 2 + number % 3]] = True
    for sets in (each for dims in graph.tensors.values() for each in dims):
        if bool(tried[sets].all()):
            tried[sets[:1]] = False  # a tensor cannot be without channels
    network = independent_copy(model).eval()
    parameters = dict(network.named_parameters())
    normed = graph.normed
    for name, parameter in parameters.items():
        zeroed = tried & (graph.read[name] | normed if name in graph.read else normed)
        for dim, sets in enumerate(graph.tensors.get(name, ())):
            parameter.data.index_fill_(dim, zeroed[sets].nonzero().flatten().to(parameter.device), 0)
    trial = Trial(network, graph, args, kwargs)
    worked = trial.largest(tried & ~heard_by_norms(network, graph, args, kwargs))
    whole = torch.zeros_like(chosen)
    for family in groups:
        if bool((worked.sets & family).any()) or not bool((tried & family).any()):
            whole |= family
    return Removable(whole, worked.follows, "" if torch.equal(worked.sets, tried) else (*trial.problems, HEARD)[0])


def unread(model: nn.Module, graph: ChannelGraph, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    """The sets that no weight of a network reads, and that are zero where norms read them: a flag for each."""
    parameters = dict(model.named_parameters())
    nonzero = {name: parameters[name] != 0 for name in graph.read if name in parameters}
    kept = graph.kept(nonzero, heard_by_norms(model, graph, args, kwargs))
    found = torch.zeros_like(kept)
    for dims in graph.tensors.values():
        for dim in dims:
            found[dim] = ~kept[dim]
    return found


@torch.no_grad()
def heard_by_norms(model: nn.Module, graph: ChannelGraph, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    """The sets that norms read and that are not zero, in the parameters or in what a norm gets: a flag for each."""
    normed = graph.normed
    heard = ~normed
    for name, parameter in model.named_parameters():
        for dim, sets in enumerate(graph.tensors.get(name, ())):
            if not bool(heard[sets].all()):
                heard[sets[_nonzero(parameter, dim)]] = True
    if not bool(heard.all()):  # zeros may become something else on the way to a norm, such as in a sigmoid
        with without_cache(model), _listening(model, graph, heard):
            model(*args, **kwargs)
    return heard & normed


@contextlib.contextmanager
def _listening(model: nn.Module, graph: ChannelGraph, heard: Tensor) -> Iterator[None]:
    """Flag the sets that are not zero when norms get them."""

    def listen(dim: int, sets: Tensor) -> Callable[..., None]:
        def hook(norm: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            heard[sets[_nonzero(tensors_of((args, kwargs))[0], dim)]] = True

        return hook

    hooks = [
        model.get_submodule(path).register_forward_pre_hook(listen(*place), with_kwargs=True)
        for path, place in graph.norms.items()
    ]
    try:
        yield
    finally:
        for each in hooks:
            each.remove()


def _nonzero(tensor: Tensor, dim: int) -> Tensor:
    """Which indices of a dimension have something other than zeros."""
    return tensor.detach().movedim(dim, 0).reshape(tensor.shape[dim], -1).any(1).cpu()
