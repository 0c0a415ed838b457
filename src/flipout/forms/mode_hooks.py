"""Hooks that are called before a module computes, so that its weights can fit its mode: training or evaluation."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ..weights import Weight

Fit = Callable[[Sequence[Weight]], None]


class ModeHooks:
    """Forward pre-hooks on every module that holds weights at any depth. Each calls `fit` with the weights below it.

    So it does not matter which module a program calls: the network, or one layer of it. A copy of the network, by
    `deepcopy` or `pickle`, has hooks that do nothing. A dropped pruner leaves none behind.
    """

    def __init__(self) -> None:
        self._stop = weakref.finalize(self, _remove, [])

    def watch(self, model: nn.Module, weights: Sequence[Weight], fit: Fit) -> None:
        """Add the hooks, in place of earlier ones. `fit` is a bound method, which they do not keep alive."""
        self.remove()
        reference, handles = weakref.WeakMethod(fit), []
        for module in model.modules():
            inner = set(module.modules())
            if below := [weight for weight in weights if weight.module in inner]:
                handles.append(module.register_forward_pre_hook(ModeHook(below, reference)))
        self._stop = weakref.finalize(self, _remove, handles)

    def remove(self) -> None:
        self._stop()

    def __deepcopy__(self, memo: dict[int, Any]) -> ModeHooks:
        return ModeHooks()


class ModeHook:
    """A forward pre-hook. It does nothing in a copy, and nothing while a compiler traces the module: the hook of the
    compiled module itself has run before."""

    only_reads = True
    """The graph of a network is the same with this hook."""

    def __init__(self, below: Sequence[Weight] = (), fit: Callable[[], Fit | None] = lambda: None) -> None:
        self._below, self._fit = below, fit

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not torch.compiler.is_compiling() and (fit := self._fit()) is not None:
            with torch.no_grad():
                fit(self._below)

    def __reduce__(self) -> tuple[type[ModeHook], tuple[()]]:
        return ModeHook, ()


def _remove(handles: Sequence[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
