"""What cannot be shrunk, why, and what to do."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from ..host import Host
from ..modules import named_tensors
from ..problems import incompatibility
from ..runtime import attachments
from ..runtime.steps import StepHooks
from ..views.dtensors import is_sharded
from .network_cut import unfit_states, unfit_statistics

ELEMENTWISE = tuple(
    getattr(torch.optim, name)
    for name in ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD")
)
ROWS, COLUMNS, STEPS = 6, 5, 3
NOT_A_KIND = ("params", "param_names", "lr", "initial_lr")
"""What does not tell one kind of parameter group from another. Schedulers change the learning rate."""

Hook = Callable[..., Any]


def of_method(pruner: Host) -> str | None:
    """Why a method cannot be shrunk at this time; None if it can."""
    name = type(pruner).__name__
    if problem := incompatibility(pruner.needs(), "shrinking", name, "a shrunk network", finished=pruner.finished):
        return problem
    if pruner.step == 0:
        return "no optimizer step was taken yet. Take the first one before you shrink the network"
    if not pruner.permanent:
        return (
            "pruned weights can still come back. Wait until the masks are frozen: pruner.permanent is True from then "
            "on. Or prune permanently, with second_chances=None"
        )
    return None


def of_training(pruner: Host) -> str | None:
    """Why the model or the optimizer cannot be shrunk; None if they can."""
    if not pruner.attached:
        return (
            "the pruner was removed from its optimizer. Attach a new one, such as flipout.KeepZeros, and shrink with it"
        )
    if problem := of_modules(pruner.model):
        return problem
    if sharded := [name for name, tensor in named_tensors(pruner.model).items() if is_sharded(tensor)]:
        return f"{sharded[0]} is a DTensor, which cannot be cut yet. Train without shrinking"
    if hook := _foreign_step_hook(pruner.optimizer):
        return (
            f"the optimizer has the hook {_name(hook)}, which may look at whole tensors. Remove it before the first "
            "shrink, or train without shrinking"
        )
    if not is_elementwise_optimizer(pruner.optimizer):
        return (
            f"the update of a weight by {type(pruner.optimizer).__name__} also depends on other weights, so it would "
            "be different in a smaller network. Use an optimizer such as SGD or AdamW, or train without shrinking"
        )
    mine = {id(tensor) for tensor in named_tensors(pruner.model).values()}
    for other in attachments.attached():
        if other is not pruner and any(id(weight.parameter) in mine for weight in other.weights):
            return f"another pruner prunes other weights of the model: {other!r}. Call its remove() first"
    if len({id(owner) for owner in _hook_owners(pruner.optimizer)}) > 1:
        return "an AimTest is attached to the optimizer. Call its remove() first"
    return None


def of_modules(model: nn.Module) -> str | None:
    """Why the modules of a model cannot be shrunk; None if they can."""
    for module in model.modules():
        if isinstance(module, nn.parallel.DistributedDataParallel):
            return (
                "the model is in DistributedDataParallel, which keeps buffers of the old sizes. Train without "
                "shrinking, or on one process"
            )
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            return "the model is compiled for the original sizes. Train without torch.compile, or without shrinking"
    return None


def of_tensors(pruner: Host, names: Iterable[str]) -> str | None:
    """Why some tensors cannot be cut; None if they can."""
    tensors, weights = named_tensors(pruner.model), {weight.name: weight for weight in pruner.weights}
    trained = {id(parameter) for group in pruner.optimizer.param_groups for parameter in group["params"]}
    for name in names:
        if tensors[name].requires_grad and id(tensors[name]) not in trained:
            return (
                f"{name} is not in the optimizer of the pruner, and the state of another optimizer cannot be cut with "
                "it. Put all parameters into one optimizer, freeze those that are not trained with "
                "requires_grad_(False), or train without shrinking"
            )
        if hook := _foreign_gradient_hook(tensors[name]):
            return (
                f"{name} has the gradient hook {_name(hook)}, which may look at the whole tensor. Remove it before the "
                "first shrink, or train without shrinking"
            )
        if odd := unfit_states(tensors[name], pruner.optimizer):
            return (
                f"{type(pruner.optimizer).__name__} keeps {odd[0]} of another shape than {name}, which cannot be cut "
                "with it. Use an optimizer such as SGD or AdamW, or train without shrinking"
            )
        for statistic, key in unfit_statistics(weights[name]) if name in weights else ():
            return (
                f"the statistic {statistic!r} has the state {key!r} of another shape than {name}: if it belongs to "
                "the weight tensor as a whole, name it in `shared` of the statistic"
            )
    return None


def of_copy(masks: Mapping[str, Tensor], model: nn.Module) -> str | None:
    """Why a copy of the model cannot be compared with the masks, or get their zeros; None if it can."""
    tensors = named_tensors(model)
    for name, mask in masks.items():
        if name in tensors and tensors[name].shape != mask.shape:
            return (
                f"{name} has the shape {tuple(tensors[name].shape)} there, but {tuple(mask.shape)} in the network, "
                "which is shrunk. Call this inside `with pruner.expanded():`, or let the copy be shrunk with the "
                "network: pruner.follow(copy) before the first shrink"
            )
    return None


def _hook_owners(optimizer: torch.optim.Optimizer) -> Iterable[StepHooks]:
    """What pruners and aim tests have attached to an optimizer."""
    for hook in optimizer._optimizer_step_post_hooks.values():
        if isinstance(owner := getattr(hook, "__self__", None), StepHooks):
            yield owner


def _foreign_step_hook(optimizer: torch.optim.Optimizer) -> Hook | None:
    """A hook around the steps of an optimizer that is not ours. (Learning-rate schedulers and gradient scalers, also
    those of Lightning and Accelerate, register none; torch's profiler has one for all optimizers.)"""
    own = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    return _foreign(*own, _global_optimizer_pre_hooks, _global_optimizer_post_hooks)


def _foreign_gradient_hook(tensor: Tensor) -> Hook | None:
    """A hook on the gradient of a tensor that is not ours."""
    return _foreign(tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None))


def _foreign(*registered: Mapping[int, Hook] | None) -> Hook | None:
    """The first hook that belongs neither to this package nor to the profiler of torch."""
    for hook in (hook for hooks in registered for hook in (hooks or {}).values()):
        module = getattr(hook, "__module__", None) or ""
        if module.partition(".")[0] != __package__.partition(".")[0] and module != "torch.profiler":
            return hook
    return None


def _name(hook: Hook) -> str:
    return f"{getattr(hook, '__module__', '')}.{getattr(hook, '__qualname__', type(hook).__name__)}"


# Optimizers that treat every weight by itself continue in the same way with some elements of a tensor.

_tried: WeakKeyDictionary[torch.optim.Optimizer, dict[str, bool]] = WeakKeyDictionary()
"""The results of trials: for each optimizer, by the settings of a parameter group."""


def is_elementwise_optimizer(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the update of a weight depends on that weight, its gradient and its state alone.

    Torch's own are known. Any other is tried, once for each kind of parameter group, on a copy: a small matrix is
    trained, and a part of it. A trial changes nothing: neither the optimizer nor torch's random numbers.
    """
    if type(optimizer) in ELEMENTWISE:
        return True
    results = _tried.setdefault(optimizer, {})
    for group in optimizer.param_groups:
        kind = str({key: value for key, value in group.items() if key not in NOT_A_KIND})
        if group["params"] and kind not in results:
            try:
                with torch.random.fork_rng(devices={each.device for each in group["params"] if each.is_cuda}):
                    results[kind] = is_same_in_part(optimizer, group)
            except Exception:  # an optimizer may need anything that the trial does not have
                results[kind] = False
        if not results.get(kind, True):
            return False
    return True


@torch.no_grad()
def is_same_in_part(optimizer: torch.optim.Optimizer, group: Mapping[str, object]) -> bool:
    """Whether a part of a matrix is trained in the same way without the rest."""
    parameter = group["params"][0]  # type: ignore[index]
    generator = torch.Generator().manual_seed(0)
    shape = (STEPS + 1, ROWS, COLUMNS)
    start, *grads = torch.randn(shape, generator=generator).to(parameter.device, parameter.dtype)
    whole = _trained(optimizer, group, start, grads)
    part = _trained(optimizer, group, start[:4, 1:], [grad[:4, 1:] for grad in grads])
    return torch.allclose(whole[:4, 1:], part, rtol=1e-4, atol=1e-6)


def _trained(
    optimizer: torch.optim.Optimizer, group: Mapping[str, object], start: Tensor, grads: list[Tensor]
) -> Tensor:
    """Train a matrix with the settings of a parameter group, on a copy of the optimizer."""
    trial = object.__new__(type(optimizer))
    left_out = {"param_groups", "state", "step"}  # a learning-rate scheduler puts another `step` into the instance
    left_out |= {name for name in vars(optimizer) if name.startswith("_optimizer_")}
    vars(trial).update(copy.deepcopy({k: v for k, v in vars(optimizer).items() if k not in left_out}))
    parameter = nn.Parameter(start.clone())
    settings = {key: value for key, value in group.items() if key not in ("params", "param_names")}
    trial.param_groups = [copy.deepcopy(settings) | {"params": [parameter]}]
    trial.state = defaultdict(dict)
    for name in vars(optimizer):
        if name.startswith("_optimizer_"):
            setattr(trial, name, OrderedDict())
    for grad in grads:
        parameter.grad = grad.clone()
        type(trial).step(trial)
    return parameter.detach()
