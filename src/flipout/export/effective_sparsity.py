"""Effective sparsity of a network that a pruner may be attached to."""

from __future__ import annotations

from torch import Tensor, nn

from ..graph.comparison import Example, as_example
from ..graph.live_paths import EffectiveWeights, count_effective, prunable_weights
from ..runtime.attachments import layer_of


def effective_weights(model: nn.Module, example_input: Example) -> EffectiveWeights:
    """Count the weights on a live path, channel by channel, for the network in evaluation mode.

    The weights of Linear and convolution modules count, those that an attached pruner prunes, and the matrices of every
    other class of modules in which one has exact zeros, such as an `LSTM` that was pruned with `include=`.

    Args:
        model: the network; it is not changed.
        example_input: the inputs that the network is called with.
    """
    return count_effective(model, as_example(example_input), weights_to_count(model))


def weights_to_count(model: nn.Module) -> dict[tuple[str, ...], Tensor]:
    """Return the weights that count as prunable; all that an attached pruner prunes are among them."""
    return prunable_weights(model, lambda weight: layer_of(weight) is not None)
