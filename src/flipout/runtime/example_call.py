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

from ..modules import unwrapped

EXAMPLES = 2
"""How many examples of a batch are kept."""

NOT_CALLED = (
    "no call of the model with gradients was seen. The pruner must be attached to the module that you call: to the "
    "compiled one if you compile the model, and to one whose forward() is used"
)


Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""The positional and the keyword arguments of a call."""


class UnsuitableCallError(Exception):
    """A call cannot be repeated with tensors alone; the message says why."""


class ExampleCall:
    """The inputs of the first call of a model with gradients, cut to two examples.

    A forward hook notes them and removes itself at once, so that the model has no hook of a pruner while it trains.
    """

    def __init__(self) -> None:
        self.arguments: Arguments | None = None
        self.inputs: tuple[Tensor, ...] | None = None
        """The arguments by position, if all of them are tensors."""
        self.problem = NOT_CALLED
        """Why there are no inputs."""
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

    def note(self, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Keep a copy of the inputs of a call, or the reason why they cannot be used."""
        leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
        tensors = iter(few_examples(tuple(leaf.detach() for leaf in leaves if isinstance(leaf, Tensor))))
        self.arguments = pytree.tree_unflatten(
            [next(tensors) if isinstance(leaf, Tensor) else leaf for leaf in leaves], spec
        )
        try:
            self.inputs = few_examples(positional_tensors(unwrapped(model), args, kwargs))
        except UnsuitableCallError as error:
            self.problem = str(error)

    def __deepcopy__(self, memo: dict[int, Any]) -> ExampleCall:
        """The copy has the inputs, but no hook."""
        new = ExampleCall()
        new.arguments, new.inputs, new.problem = self.arguments, self.inputs, self.problem  # nobody changes them
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
                call.note(model, args, kwargs)

    def __reduce__(self) -> tuple[type[InputHook], tuple[()]]:
        return InputHook, ()


def positional_tensors(network: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """The arguments of a call by position. All of them must be tensors, except for those at their default.

    Arguments are bound by name: one that is given behind another that is left out cannot be given by position.
    """
    bound = inspect.signature(network.forward).bind(*args, **kwargs)
    bound.apply_defaults()
    tensors: list[Tensor] = []
    omitted: str | None = None
    for name, parameter in bound.signature.parameters.items():
        value, kind = bound.arguments[name], parameter.kind
        if value is parameter.default:
            omitted = omitted or name
            continue
        for each in value if kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) else (value,):
            if kind in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD):
                raise UnsuitableCallError(f"the network is called with the keyword argument {name}")
            if omitted is not None:
                raise UnsuitableCallError(f"the network is called with {name}, but without {omitted} before it")
            if not isinstance(each, Tensor) or each.layout != torch.strided or each.is_meta:
                raise UnsuitableCallError(
                    f"the network is called with {name} of type {type(each).__name__}, which is not an ordinary tensor"
                )
            tensors.append(each.detach())
    if not tensors:
        raise UnsuitableCallError("the network is called without a tensor")
    return tuple(tensors)


def few_examples(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Copies of the first examples of a batch; of the whole tensors if they have no common first axis."""
    is_batch = len({tensor.shape[:1] for tensor in tensors}) == 1 and tensors[0].ndim > 0
    return tuple((tensor[:EXAMPLES] if is_batch else tensor).clone() for tensor in tensors)
