"""The inputs that a model is called with, noted at its first training call."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle

from ..channels.comparison import Arguments, tensors_of

EXAMPLES = 2
"""How many examples of a batch are kept."""

NOT_CALLED = (
    "no call of the model with gradients was seen. The pruner must be attached to the module that you call: to the "
    "compiled one if you compile the model, and to one whose forward() is used"
)


class UnsuitableCallError(Exception):
    """A call cannot be repeated with tensors alone; the message says why."""


class ExampleCall:
    """The inputs of the first call of a model with gradients, cut to two examples.

    A forward hook notes them and removes itself at once, so that the model has no hook of a pruner while it trains.
    """

    def __init__(self) -> None:
        self.arguments: Arguments | None = None
        """What the model is called with; None before such a call."""
        self._stop = weakref.finalize(self, lambda: None)

    def watch(self, model: nn.Module) -> None:
        """Note the inputs of the next call, unless there are some already."""
        if self.arguments is None:
            hook = InputHook(self)
            hook.handle = model.register_forward_pre_hook(hook, with_kwargs=True)
            self._stop = weakref.finalize(self, hook.handle.remove)  # a dropped pruner leaves no hook in the model

    def stop(self) -> None:
        """Remove the hook."""
        self._stop()

    def note(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Keep a copy of the inputs of a call."""
        self.arguments = few_examples((tuple(args), dict(kwargs)))

    def __deepcopy__(self, memo: dict[int, Any]) -> ExampleCall:
        """The copy has the inputs, but no hook."""
        new = ExampleCall()
        new.arguments = self.arguments  # nobody changes them
        return new


class InputHook:
    """A forward pre-hook that notes the inputs of a call. It never changes them; a copy of it does nothing."""

    only_reads = True
    """The graph of a network is the same with this hook."""

    def __init__(self, call: ExampleCall | None = None) -> None:
        self._call = (lambda: None) if call is None else weakref.ref(call)
        self.handle: RemovableHandle | None = None

    def __call__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        if self.handle is not None:
            self.handle.remove()
        if (call := self._call()) is not None:
            with torch.no_grad():
                call.note(args, kwargs)

    def __reduce__(self) -> tuple[type[InputHook], tuple[()]]:
        return InputHook, ()


def tensor_arguments(network: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """The arguments of a call, bound by name: `m(x, gate=g)` is not `m(x, g)`. They are tensors, or at their default.

    Those that can be given by position are, up to the first one that is left out. So all calls that mean the same have
    the same arguments.
    """
    bound = inspect.signature(network.forward).bind(*args, **kwargs)
    bound.apply_defaults()
    by_position, by_name, omitted = list[Any](), dict[str, Any](), ""
    for name, parameter in bound.signature.parameters.items():
        value, kind = bound.arguments[name], parameter.kind
        if value is parameter.default:
            omitted = omitted or name
            continue
        given = value if kind is parameter.VAR_KEYWORD else {name: value}
        for own, each in [(name, each) for each in value] if kind is parameter.VAR_POSITIONAL else given.items():
            if not isinstance(each, Tensor) or each.layout != torch.strided or each.is_meta:
                raise UnsuitableCallError(
                    f"the network is called with {own} of type {type(each).__name__}, which is not an ordinary tensor"
                )
        if kind is parameter.VAR_KEYWORD or kind is parameter.KEYWORD_ONLY:
            by_name |= given
        elif not omitted:
            by_position += value if kind is parameter.VAR_POSITIONAL else (value,)
        elif kind is parameter.POSITIONAL_OR_KEYWORD:
            by_name |= given
        elif value != ():
            raise UnsuitableCallError(f"the network is called with {name}, but without {omitted} before it")
    if not by_position and not by_name:
        raise UnsuitableCallError("the network is called without a tensor")
    return tuple(by_position), by_name


def is_of_examples(arguments: Arguments) -> bool:
    """Whether all tensors of a call have the same first axis, that of the examples."""
    tensors = tensors_of(arguments)
    return len({tensor.shape[:1] for tensor in tensors}) == 1 and tensors[0].ndim > 0


def few_examples(arguments: Arguments) -> Arguments:
    """A copy of the first examples of a batch; of the whole tensors if they have no common first axis."""
    is_batch = is_of_examples(arguments)
    leaves, spec = pytree.tree_flatten(arguments)
    few: Arguments = pytree.tree_unflatten(
        [
            (each[:EXAMPLES] if is_batch else each).detach().clone() if isinstance(each, Tensor) else each
            for each in leaves
        ],
        spec,
    )
    return few
