"""Copies of a network that can be run and changed without any effect on it, and the networks that are refused."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..modules import unwrapped


class UnsupportedNetworkError(Exception):
    """The network as a whole cannot be traced or compacted; the message says why."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, with the next one if it ends at a colon; its class if it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    end = next((number for number, line in enumerate(lines) if not line.endswith(":")), len(lines) - 1)
    return " ".join(lines[: end + 1])


def evaluation_copy(model: nn.Module) -> nn.Module:
    """A copy in evaluation mode, without wrappers such as DataParallel or torch.compile.

    Raise an error that names the fix if the network is scripted or quantized.
    """
    network = unwrapped(model)
    _refuse_unsupported(network)
    try:
        return independent_copy(network).eval()
    except Exception as error:  # any attribute of the network may refuse to be copied
        advice = (
            "; if it was pruned with torch.nn.utils.prune, make the pruning permanent first with "
            "torch.nn.utils.prune.remove"
            if isinstance(error, RuntimeError)
            else ": store what cannot be copied elsewhere than in the network"
        )
        raise ValueError(f"{type(network).__name__} cannot be copied ({first_line(error)}){advice}") from error


def independent_copy(model: nn.Module) -> nn.Module:
    """A deep copy whose errors are raised but not printed."""
    return without_printed_errors(copy.deepcopy(model))


def without_printed_errors(model: nn.Module) -> nn.Module:
    """Make every graph of torch.fx in a network raise its errors without printing them; return the network.

    A `GraphModule` prints the traceback of an error to stderr before it raises the error. Here networks are run to find
    out whether they accept an input, so an error is often an expected answer. Each `GraphModule` has a class of its
    own, with a `__call__` that prints. Without it, the module is called like any other module. A deep copy and
    `recompile()` create the method again.
    """
    for module in model.modules():
        if isinstance(module, fx.GraphModule) and "__call__" in vars(type(module)):
            del type(module).__call__
    return model


def has_hooks(module: nn.Module) -> bool:
    """Whether hooks may change the inputs or outputs of a module. A hook that does not says so: `only_reads`."""
    before = module._forward_pre_hooks.values()
    return bool(module._forward_hooks) or not all(getattr(hook, "only_reads", False) for hook in before)


def quantized_entry(state: Mapping[str, Any]) -> str | None:
    """The name of the first tensor or module of a `state_dict` that is quantized; None if none is."""
    for name, value in state.items():
        module, packed, _ = str(name).partition("._packed_params")
        if _is_quantized(value) or (packed and not isinstance(value, Tensor)):
            return module
    return None


def _refuse_unsupported(network: nn.Module) -> None:
    if isinstance(network, torch.jit.ScriptModule):
        raise ValueError(
            f"{type(network).__name__} is a TorchScript module, whose operations cannot be analysed: pass the module "
            "that torch.jit.script or torch.jit.trace was called with"
        )
    for name, module in network.named_modules():
        tensors = (*module._parameters.values(), *module._buffers.values())
        if _is_quantized_module(module) or any(map(_is_quantized, tensors)):
            raise ValueError(
                f"{name or 'the network'} ({type(module).__name__}) is quantized, and the zeros of a quantized weight "
                "cannot be used: export before quantizing"
            )


def _is_quantized(tensor: object) -> bool:
    """Whether a tensor is quantized, by torch or by torchao."""
    return isinstance(tensor, Tensor) and (tensor.is_quantized or type(tensor).__module__.startswith("torchao."))


def _is_quantized_module(module: nn.Module) -> bool:
    """Whether torch has quantized a module. Those that compute in floating point are prepared for quantization."""
    package, name = type(module).__module__, type(module).__name__
    return package.startswith("torch.ao.nn.") and ".quantized" in package and not name.endswith("FloatFunctional")
