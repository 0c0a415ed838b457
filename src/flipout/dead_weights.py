"""Weights on no live path: found for a pruner at its events, from the masks and the model's own calls."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from .graph.copies import UnsupportedNetworkError
from .graph.live_paths import LivePaths
from .layers import Layer
from .runtime.example_call import ExampleCall
from .warnings import DeadFirstWarning


class DeadWeights:
    """Finds the kept weights of a model that lie on no live path from its input to its output.

    The first training call of the model shows what it is called with. At the first event after that the model is
    traced, and from then on an event costs two passes over the channels of the graph. If that is not possible, nothing
    counts as dead, and one warning says why.
    """

    def __init__(self) -> None:
        self.call = ExampleCall()
        self._paths: LivePaths | None = None
        self._warned = False

    def watch(self, model: nn.Module) -> None:
        """Note the inputs of the next training call."""
        self.call.watch(model)

    def remove(self) -> None:
        """Remove the hook, if the model still has it."""
        self.call.stop()

    def forget(self) -> None:
        """Trace the model again at the next event, because its modules have changed."""
        self._paths = None

    def ready(self, model: nn.Module) -> bool:
        """Whether dead weights can be found. Trace the model if that was not done yet."""
        if self._paths is None and not self._warned:
            self._trace(model)
        return self._paths is not None

    def find(self, layers: Sequence[Layer], masks: Sequence[Tensor]) -> dict[int, Tensor]:
        """Mark the dead weights of each layer that has some, by the number of the layer, if these were its masks."""
        assert self._paths is not None
        dead = self._paths.dead({layer.name: mask for layer, mask in zip(layers, masks, strict=True)})
        return {number: dead[layer.name] for number, layer in enumerate(layers) if layer.name in dead}

    def _trace(self, model: nn.Module) -> None:
        if self.call.inputs is None:
            self.warn(self.call.problem)
            return
        try:
            self._paths = LivePaths(model, self.call.inputs)
        except (UnsupportedNetworkError, ValueError) as error:
            self.warn(str(error))

    def warn(self, reason: str) -> None:
        """Warn that dead weights are not found, once."""
        self._warned = True
        warnings.warn(
            f"dead_first has no effect: {reason.rstrip('.')}. Pass dead_first=False if that is as it should be",
            DeadFirstWarning,
            stacklevel=2,
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> DeadWeights:
        """The copy traces its own model."""
        new = DeadWeights()
        new.call, new._warned = self.call.__deepcopy__(memo), self._warned
        return new
