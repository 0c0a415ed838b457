"""The running statistics of batch norms, estimated again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..modules import unwrapped
from ..runtime.batches import Batches
from .calibration import batch_norms, calibrating, hooked


class ChannelMoments:
    """The mean and variance of each channel over all batches, in float64 (Chan et al., 1983)."""

    def __init__(self) -> None:
        self.count, self.batches = 0, 0
        self.mean: Tensor | float = 0.0
        self.squares: Tensor | float = 0.0
        """The sum of squared differences from the mean."""

    def add(self, inputs: Tensor) -> None:
        channels = inputs.detach().transpose(0, 1).flatten(1) if inputs.ndim > 1 else inputs.detach()[None]
        count = channels.shape[1]
        variance, mean = torch.var_mean(channels.double(), 1, correction=0)
        total = self.count + count
        shift = mean - self.mean
        self.mean = self.mean + shift * (count / total)
        self.squares = self.squares + variance * count + shift.square() * (self.count * count / total)
        self.count, self.batches = total, self.batches + 1

    @property
    def variance(self) -> Tensor:
        """The unbiased variance, which batch norm keeps."""
        return torch.as_tensor(self.squares) / max(1, self.count - 1)


def recalibrate(model: nn.Module, batches: Iterable[Any]) -> nn.Module:
    """Estimate the running statistics of all batch norms from batches, in one pass. Return the model.

    After pruning, compaction or averaging of weights, the inputs of batch norms have other means and variances than in
    training. The new statistics are the exact mean and variance over all batches. During the pass, norms use the
    statistics of the batch, and all other modules are in evaluation mode. Afterwards every module has its old mode. A
    network without batch norm is left alone. If anything fails, nothing is changed.

        >>> model = flipout.recalibrate(model, loader)

    Args:
        model: the network.
        batches: its inputs, with or without targets: tensors, tuples or dictionaries. Use several hundred examples, in
            batches as large as in training.
    """
    network = unwrapped(model)
    norms = batch_norms(network)
    if not norms:
        return model
    found = observe_norms(network, Batches(batches, model), norms)
    write_statistics(found)
    return model


def observe_norms(
    network: nn.Module, batches: Batches, norms: list[tuple[str, _BatchNorm]]
) -> dict[_BatchNorm, ChannelMoments]:
    """The moments of the inputs of batch norms. One that no batch reaches is left out."""
    moments = {norm: ChannelMoments() for _, norm in norms}

    def note(norm: nn.Module, args: tuple[Any, ...]) -> None:
        assert isinstance(norm, _BatchNorm)
        moments[norm].add(args[0])

    hook: Callable[..., None] = note
    with hooked([norm.register_forward_pre_hook(hook) for norm in moments]), calibrating(network, norms=True):
        for number, call in enumerate(batches):
            batches.run(number, call)
    for name, norm in norms:
        each = moments[norm]
        if each.count and not bool(
            torch.isfinite(each.variance).all() & torch.isfinite(torch.as_tensor(each.mean)).all()
        ):
            raise FloatingPointError(
                f"the inputs of {name} are NaN or infinite for a calibration batch, and nothing was changed: check the "
                "batches and the weights of the layers before it"
            )
    return {norm: each for norm, each in moments.items() if each.count}


@torch.no_grad()
def write_statistics(found: dict[_BatchNorm, ChannelMoments]) -> None:
    for norm, moments in found.items():
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.copy_(torch.as_tensor(moments.mean))
        norm.running_var.copy_(moments.variance)
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.fill_(moments.batches)
