"""Weights on no live path: found for a pruner at its events, from the masks and the model's own calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ..channels.copies import UnsupportedNetworkError
from ..channels.live_paths import LivePaths
from ..problems import DeadFirstWarning, Need, warn
from ..runtime.example_call import NOT_CALLED, ExampleCall
from ..weights import Weight


class DeadWeights:
    """Finds no dead weights: the choice for a pruner without `dead_first`."""

    def watch(self, model: nn.Module) -> None:
        """Note the inputs of the next training call."""

    def remove(self) -> None:
        """Remove the hook, if the model still has it."""

    def forget(self) -> None:
        """Record the model again at the next event, because its modules have changed."""

    def ready(self, model: nn.Module, step: int) -> bool:
        """Whether dead weights can be found. Before the first step no call has shown what the model reads."""
        return False

    def find(self, weights: Sequence[Weight], masks: Sequence[Tensor]) -> dict[int, Tensor]:
        """Mark the dead weights of each tensor that has some, by the number of the tensor, if these were its masks."""
        return {}

    def needs(self, units: str) -> dict[Need, str]:
        """What pruning dead weights first needs, with a kind of units."""
        return {}


class DeadFirst(DeadWeights):
    """Finds the kept weights of a model that lie on no live path from its input to its output, to prune them first.

    The first training call of the model shows what it is called with. At the first event after that the model is
    recorded, and from then on an event costs two passes over the recorded operations. If that is not possible, nothing
    counts as dead, and one warning says why.
    """

    def __init__(self) -> None:
        self.call = ExampleCall()
        self._paths: LivePaths | None = None
        self._warned = False

    def needs(self, units: str) -> dict[Need, str]:
        needs: dict[Need, str] = {"whole weights": "dead_first=True follows paths through whole weights"}
        if units == "pattern":
            needs["single weights"] = "dead_first has no effect where a pattern fixes how many weights stay"
        if units == "pool":
            needs["single weights"] = "dead_first ranks the weights of the whole network"
        if units == "channel":
            needs["single weights"] = "dead_first has no effect where a channel goes with all that writes or reads it"
        return needs

    def watch(self, model: nn.Module) -> None:
        self.call.watch(model)

    def remove(self) -> None:
        self.call.stop()

    def forget(self) -> None:
        self._paths = None

    def ready(self, model: nn.Module, step: int) -> bool:
        if step and self._paths is None and not self._warned:
            self._record(model)
        return bool(step) and self._paths is not None

    def find(self, weights: Sequence[Weight], masks: Sequence[Tensor]) -> dict[int, Tensor]:
        assert self._paths is not None
        dead = self._paths.dead({weight.name: mask for weight, mask in zip(weights, masks, strict=True)})
        return {number: dead[weight.name] for number, weight in enumerate(weights) if weight.name in dead}

    def _record(self, model: nn.Module) -> None:
        if self.call.arguments is None:
            self._warn(NOT_CALLED)
            return
        try:
            self._paths = LivePaths(model, *self.call.arguments)
        except (UnsupportedNetworkError, ValueError) as error:
            self._warn(str(error))

    def _warn(self, reason: str) -> None:
        """Warn that dead weights are not found, once."""
        self._warned = True
        warn(
            f"dead_first has no effect: {reason.rstrip('.')}. Pass dead_first=False to silence this warning",
            DeadFirstWarning,
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> DeadFirst:
        """The copy records its own model."""
        new = DeadFirst()
        new.call, new._warned = self.call.__deepcopy__(memo), self._warned
        return new
