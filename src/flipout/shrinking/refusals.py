"""What cannot be shrunk, why, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import nn

from ..criteria import is_elementwise
from ..modules import named_tensors
from ..runtime import attachments
from ..runtime.hooks import StepHooks
from ..shards.local_tensors import is_sharded
from .companions import unfit_states, unfit_statistics
from .elementwise_optimizers import is_elementwise_optimizer

if TYPE_CHECKING:
    from ..pruner import Pruner

AROUND_STEPS = ("change_gradients", "settle", "extra_state")
IN_EVENTS = ("prune", "keep", "score", "select", "apply", "record")
"""A method that does one of these in its own way may need weights that are removed."""


def of_method(pruner: Pruner) -> str | None:
    """Why a method cannot be shrunk at this time; None if it can."""
    own = pruner.overridden(AROUND_STEPS)
    if pruner.needs_whole_network or own:
        reason = pruner.needs_whole_network or f"its own {own[0]}() may use weights that are removed"
        return f"{type(pruner).__name__} needs the whole network: {reason}. Train without shrinking"
    if not pruner.finished and (own := pruner.overridden(IN_EVENTS)):
        name = type(pruner).__name__
        return f"the own {own[0]}() of {name} may use weights that are removed. Wait until pruner.finished"
    if pruner.step == 0:
        return "nothing is trained yet. Take the first optimizer step before you shrink the network"
    if pruner.regrows:
        return (
            "pruned weights can still come back. Wait until the masks are frozen: pruner.regrows is False from then "
            "on. Or prune for good, with revival=None"
        )
    if not pruner.finished and pruner.units is not None and not pruner.units.survives_shrinking:
        return (
            "kernels, blocks and patterns would be cut apart, and channels with scope='layer' are counted in whole "
            "layers. Wait until pruner.finished"
        )
    asking = [each for layer in pruner.layers for each in layer.statistics.values() if each.gradient == "unmasked"]
    if not pruner.finished and asking:
        return "a statistic needs the gradients of pruned weights. Wait until pruner.finished"
    if any(not statistic.only_for_prunings for statistic in asking):
        return (
            "a statistic needs the gradients of pruned weights. If prunings alone read it, declare that with "
            "`only_for_prunings = True` in its class, and wait until pruner.finished"
        )
    if not pruner.finished and not is_elementwise(pruner.criterion):
        return (
            "the scores of the criterion may depend on weights that are removed. If each score depends on its own "
            "weight alone, declare that with @flipout.criteria.elementwise; otherwise wait until pruner.finished"
        )
    return None


def of_training(pruner: Pruner) -> str | None:
    """Why the model or the optimizer cannot be shrunk; None if they can."""
    if not attachments.contains(pruner):
        return (
            "the pruner was removed from its optimizer. Attach a new one, such as flipout.KeepZeros, and shrink with it"
        )
    for module in pruner.model.modules():
        if isinstance(module, nn.parallel.DistributedDataParallel):
            return (
                "the model is in DistributedDataParallel, which keeps buffers of the old sizes. Train without "
                "shrinking, or on one process"
            )
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            return "the model is compiled, for the old sizes. Train without torch.compile, or without shrinking"
    if sharded := [name for name, tensor in named_tensors(pruner.model).items() if is_sharded(tensor)]:
        return f"{sharded[0]} is a DTensor, which cannot be cut yet. Train without shrinking"
    if not is_elementwise_optimizer(pruner.optimizer):
        return (
            f"{type(pruner.optimizer).__name__} updates a weight by other weights too, and would go on differently in "
            "a smaller network. Use an optimizer such as SGD or AdamW, or train without shrinking"
        )
    weights = {id(tensor) for tensor in named_tensors(pruner.model).values()}
    for other in attachments.attached():
        if other is not pruner and any(id(layer.weight) in weights for layer in other.layers):
            return f"another pruner prunes other weights of the model: {other!r}. Call its remove() first"
    if any(isinstance(owner, StepHooks) for owner in _hook_owners(pruner)):
        return "an AimTest counts at the weights of this optimizer. Call its remove() first"
    return None


def of_tensors(pruner: Pruner, names: Iterable[str]) -> str | None:
    """Why some tensors cannot be cut; None if they can."""
    tensors, layers = named_tensors(pruner.model), {layer.name: layer for layer in pruner.layers}
    trained = {id(parameter) for group in pruner.optimizer.param_groups for parameter in group["params"]}
    for name in names:
        if tensors[name].requires_grad and id(tensors[name]) not in trained:
            return (
                f"{name} is not in the optimizer of the pruner, and the state of another optimizer cannot be cut with "
                "it. Put all parameters into one optimizer, freeze those that are not trained with "
                "requires_grad_(False), or train without shrinking"
            )
        if odd := unfit_states(tensors[name], pruner.optimizer):
            return (
                f"{type(pruner.optimizer).__name__} keeps {odd[0]} of another shape than {name}, which cannot be cut "
                "with it. Use an optimizer such as SGD or AdamW, or train without shrinking"
            )
        for statistic, part in unfit_statistics(layers[name]) if name in layers else ():
            return (
                f"the statistic {statistic!r} has the state {part!r} of another shape than {name}: if it belongs to "
                "the weight tensor as a whole, name it in `shared` of the statistic"
            )
    return None


def of_copy(pruner: Pruner, model: nn.Module) -> str | None:
    """Why a copy of the model cannot be compared with the masks, or get their zeros; None if it can."""
    tensors = named_tensors(model)
    for name, mask in pruner.masks.items() if pruner.shrunk else ():
        if name in tensors and tensors[name].shape != mask.shape:
            return (
                f"{name} has the shape {tuple(tensors[name].shape)} there, but {tuple(mask.shape)} in the network, "
                "which is shrunk. Call this inside `with pruner.expanded():`, or let the copy be shrunk with the "
                "network: pruner.follow(copy) before the first shrink"
            )
    return None


def _hook_owners(pruner: Pruner) -> Iterable[object]:
    """The owners of the step hooks of the optimizer, other than the pruner's own."""
    optimizer: torch.optim.Optimizer = pruner.optimizer
    for hook in (*optimizer._optimizer_step_pre_hooks.values(), *optimizer._optimizer_step_post_hooks.values()):
        owner = getattr(hook, "__self__", None)
        if owner is not pruner._hooks:
            yield owner
