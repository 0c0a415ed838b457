"""Refuse networks that cannot be exported, with an error that names the fix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

QUANTIZED_MODULES = (
    "torch.ao.nn.quantized",
    "torch.ao.nn.intrinsic.quantized",
    "torch.ao.nn.sparse.quantized",
)
"""The packages of torch's quantized modules. Modules for quantization-aware training are not quantized yet."""
FLOAT_MODULES = ("FloatFunctional", "FXFloatFunctional")
"""Modules of these packages that compute in floating point, in networks that are prepared for quantization."""


def refuse_unsupported(network: nn.Module) -> None:
    """Raise a ValueError for a scripted network, and for a network with quantized parts."""
    if isinstance(network, torch.jit.ScriptModule):
        raise ValueError(
            f"{type(network).__name__} is a TorchScript module, whose operations cannot be analysed: pass the module "
            "that torch.jit.script or torch.jit.trace was called with"
        )
    for name, module in network.named_modules():
        tensors = (*module._parameters.values(), *module._buffers.values())
        if _is_quantized_module(module) or any(map(is_quantized, tensors)):
            raise ValueError(
                f"{name or 'the network'} ({type(module).__name__}) is quantized, and the zeros of a quantized weight "
                "cannot be used: export before quantizing"
            )


def is_quantized(tensor: object) -> bool:
    """Return whether a tensor is quantized, by torch or by torchao."""
    return isinstance(tensor, Tensor) and (tensor.is_quantized or type(tensor).__module__.startswith("torchao."))


def quantized_entry(state: Mapping[str, Any]) -> str | None:
    """Return the name of the first tensor or module of a `state_dict` that is quantized; None if none is."""
    for name, value in state.items():
        module, packed, _ = str(name).partition("._packed_params")
        if is_quantized(value) or (packed and not isinstance(value, Tensor)):
            return module
    return None


def _is_quantized_module(module: nn.Module) -> bool:
    package = type(module).__module__
    is_listed = any(package == each or package.startswith(f"{each}.") for each in QUANTIZED_MODULES)
    return is_listed and type(module).__name__ not in FLOAT_MODULES
