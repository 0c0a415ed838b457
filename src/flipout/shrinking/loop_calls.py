"""What a training loop calls: a network is shrunk for the calls that it was tried with, and for no others."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ..channels.comparison import Arguments
from ..modules import unwrapped
from ..runtime.example_call import InputHook, UnsuitableCallError, tensor_arguments


class LoopCall(NamedTuple):
    """A call from outside the network, with gradients.

    Args:
        module: the name of the module that is called; empty for the network itself.
        dimensions: the inputs, by the number of dimensions of each.
        problem: why the call cannot be repeated with tensors alone; empty if it can.
    """

    module: str
    dimensions: str = ""
    problem: str = ""


class LoopCalls:
    """Notes the calls of one step from outside the network.

    The modules have hooks only in a step that is watched. A call that another module of the network makes does not
    count, nor does one that a backward pass repeats (activation checkpointing).
    """

    def __init__(self) -> None:
        self.seen: list[LoopCall] = []
        """The calls of the last step that was watched."""
        self._noted: list[LoopCall] = []
        self._stop = weakref.finalize(self, lambda: None)
        self._names: dict[int, str] = {}
        self._act: Callable[[LoopCall], None] = lambda call: None

    def watch(self, model: nn.Module, act: Callable[[LoopCall], None] = lambda call: None) -> None:
        """Note the calls until `stop`, and let `act` see each before it is carried out."""
        self.stop()
        network = unwrapped(model)
        if any(isinstance(module, torch.jit.ScriptModule) for module in network.modules()):
            return
        self._names = {id(module): name for name, module in network.named_modules()}
        self._noted, self._act = [], act
        hook = CallHook(self)
        handles = [module.register_forward_pre_hook(hook, with_kwargs=True) for module in network.modules()]
        self._stop = weakref.finalize(self, lambda: _remove(handles))

    def stop(self) -> None:
        """Leave no hook in the network."""
        self._stop()
        self.seen, self._noted = self._noted or self.seen, []

    def note(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], frame: FrameType | None) -> None:
        """Note a call, unless a module of the network makes it."""
        if id(module) not in self._names or self._is_inside(module, frame):
            return
        call = _as_call(self._names[id(module)], module, args, kwargs)
        if call not in self._noted:
            self._noted.append(call)
        self._act(call)

    def _is_inside(self, module: nn.Module, frame: FrameType | None) -> bool:
        """Whether a call of a module comes from another module of the network."""
        while frame is not None:
            if frame.f_code is nn.Module._call_impl.__code__:
                caller = frame.f_locals.get("self")
                if caller is not module and id(caller) in self._names:
                    return True
            frame = frame.f_back
        return False


class CallHook(InputHook):
    """A forward pre-hook that notes calls. It changes nothing; a copy of it does nothing."""

    def __init__(self, calls: LoopCalls) -> None:
        super().__init__()
        self._calls = weakref.ref(calls)

    def __call__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or _in_backward():
            return
        if (calls := self._calls()) is not None:
            calls.note(model, args, kwargs, sys._getframe(1))


def _as_call(name: str, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> LoopCall:
    if name:
        return LoopCall(name)
    try:
        return LoopCall(name, dimensions_of(tensor_arguments(module, args, kwargs)))
    except (UnsuitableCallError, TypeError) as error:
        return LoopCall(name, problem=str(error))


def dimensions_of(arguments: Arguments) -> str:
    """The number of dimensions of each argument, such as `4, mask=2`."""
    args, kwargs = arguments
    return ", ".join([*(str(each.ndim) for each in args), *(f"{name}={kwargs[name].ndim}" for name in sorted(kwargs))])


def problem_of(call: LoopCall, example: Arguments) -> str | None:
    """Why a network cannot be shrunk that is called in this way, and was tried with an example; None if it can."""
    if call.module:
        return f"the training calls {call.module} by itself, and may read channels of it that the network does not read"
    if call.problem:
        return f"what the training calls it with cannot be tried: {call.problem}"
    if call.dimensions != (given := dimensions_of(example)):
        return f"the training calls it with tensors of ({call.dimensions}) dimensions, but the example has ({given})"
    return None


def _remove(handles: Sequence[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()


def _in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)
