"""Calibration batches: how a model is called with each, as often as they are needed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..channels.copies import first_line
from ..modules import unwrapped
from .passes import moved

LossFunction = Callable[[Any, Any], Tensor]
"""The loss of an output and a target. For a dictionary as the batch, the target is the dictionary."""


class Stop(BaseException):
    """Ends a forward pass early. It is no `Exception`, so that no model catches it."""


class Call(NamedTuple):
    """The arguments of a call of the model, and the target of the loss."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Any


class Batches:
    """Batches that can be read again and again.

    A tensor is the only argument of the model. Of a tuple or list, the first elements are the arguments, as many as
    the model requires, and the next one is the target; the first may itself be a tuple of all arguments. A dictionary
    is given by keyword, without what the model does not accept.

    Args:
        batches: an iterable of batches; an iterator is read into a list. A single tensor or dictionary is one batch.
        model: the model that they are for.
    """

    def __init__(self, batches: Iterable[Any], model: nn.Module) -> None:
        if isinstance(batches, (Tensor, Mapping)):
            batches = [batches]
        self.batches = list(batches) if isinstance(batches, Iterator) else batches
        self.network = unwrapped(model)
        self.device = next((p.device for p in self.network.parameters()), torch.device("cpu"))
        parameters = inspect.signature(self.network.forward).parameters.values()
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self._required = max(1, sum(p.default is p.empty for p in positional))
        self._names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        self._any_name = any(p.kind == p.VAR_KEYWORD for p in parameters)
        # A cache of keys and values would grow with every pass.
        self._always = {"use_cache": False} if "use_cache" in self._names and hasattr(self.network, "config") else {}
        self._random = torch.get_rng_state()
        self.number = 0
        for _ in self._read():
            self.number += 1
        if not self.number:
            raise ValueError(
                "there are no calibration batches: pass at least one. (A generator can be read only once; pass a list, "
                "or a new generator)"
            )

    def _read(self) -> Iterator[Any]:
        """The batches, with torch's random numbers as they were at first: a loader shuffles in the same way again."""
        before = torch.get_rng_state()
        torch.set_rng_state(self._random)
        try:
            yield from self.batches
        finally:
            torch.set_rng_state(before)

    def __iter__(self) -> Iterator[Call]:
        count = 0
        for batch in self._read():
            count += 1
            yield self.call(batch)
        if count != self.number:
            raise ValueError(
                f"there were {self.number} calibration batches at first, and {count} when they were read again: pass "
                "a list, or an iterable that can be read several times"
            )

    def call(self, batch: Any) -> Call:
        batch = moved(batch, self.device)
        if isinstance(batch, Tensor):
            return Call((batch,), self._always, None)
        if isinstance(batch, Mapping):
            given = {key: value for key, value in batch.items() if self._any_name or key in self._names}
            return Call((), {**given, **self._always}, batch)
        if not isinstance(batch, (tuple, list)) or not batch:
            raise TypeError(
                f"a calibration batch is a {type(batch).__name__}: give tensors, tuples of inputs and a target, or "
                "dictionaries"
            )
        if isinstance(batch[0], (tuple, list, Mapping)):
            inner = self.call(batch[0])
            args = inner.args if isinstance(batch[0], Mapping) else tuple(batch[0])
            return Call(args, inner.kwargs, batch[1] if len(batch) > 1 else None)
        rest = batch[self._required :]
        return Call(tuple(batch[: self._required]), self._always, rest[0] if rest else None)

    def run(self, number: int, call: Call) -> Any:
        """Call the model. Return its output, or None if a hook has stopped the pass."""
        try:
            return self.network(*call.args, **call.kwargs)
        except Stop:
            return None
        except Exception as error:  # the user's code may raise any error
            raise ValueError(
                f"the model cannot be called with calibration batch {number} ({_described(call)}): {first_line(error)}"
            ) from error


def _described(call: Call) -> str:
    named = [*map(_kind, call.args), *(f"{key}={_kind(value)}" for key, value in call.kwargs.items())]
    return ", ".join(named)


def _kind(value: Any) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def read_loss(loss_fn: LossFunction, output: Any, call: Call) -> Tensor:
    """The loss of an output, which must be one finite number."""
    if call.target is None:
        raise ValueError("loss_fn= needs targets: give batches of (inputs, target), or dictionaries")
    loss = loss_fn(output, call.target)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise ValueError("loss_fn= must return a tensor with one number")
    if not torch.isfinite(loss):
        raise FloatingPointError("the loss of a calibration batch is NaN or infinite: check the batches and loss_fn=")
    return loss
