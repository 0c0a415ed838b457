"""Which parameters are pruned by default: the matrix of a linear layer or a convolution, in the forms it comes in."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.parametrize import ParametrizationList

LORA = frozenset({"lora_A", "lora_B"})
"""Parts of the names of LoRA adapters, in PEFT and elsewhere."""


def is_transposed(module: nn.Module) -> bool:
    """Whether a module is Hugging Face's Conv1D: a linear layer whose matrix is stored as inputs x outputs."""
    imported = sys.modules.get("transformers.pytorch_utils")  # without it there is no such module
    kind = getattr(imported, "Conv1D", None)
    return kind is not None and isinstance(module, kind)


def is_matrix_module(module: nn.Module) -> bool:
    """Whether a module is linear or a convolution."""
    return isinstance(module, (nn.Linear, _ConvNd)) or is_transposed(module)


def is_weight(name: str, holder: nn.Module, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a parameter is the weight of a linear layer or a convolution, or what spectral norm computes it from.

    Spectral norm divides by the largest singular value: a zero stays a zero in the weight.
    """
    path, _, last = name.rpartition(".")
    if isinstance(holder, ParametrizationList):
        spectral = [type(kind) for kind in holder] == [_SpectralNorm]
        return spectral and last == "original" and _parametrizes_weight(path, modules)
    if not is_matrix_module(holder):
        return False
    return last == "weight" or (last == "weight_orig" and "weight_u" in holder._buffers)  # old spectral norm


def refusal(name: str, holder: nn.Module, modules: Mapping[str, nn.Module]) -> str | None:
    """Why the weight that is computed from a parameter cannot be pruned, with the fix. None if that is not the case."""
    path, _, last = name.rpartition(".")
    if isinstance(holder, ParametrizationList):
        if not _parametrizes_weight(path, modules) or is_weight(name, holder, modules):
            return None
        module, kinds = path.removesuffix("parametrizations.weight"), [type(kind).__name__ for kind in holder]
        remove = "torch.nn.utils.parametrize.remove_parametrizations(module, 'weight')"
        return _parametrized(module.rstrip("."), [kind.lstrip("_") for kind in kinds], remove)
    if not is_matrix_module(holder):
        return None
    if last == "weight_v" and "weight_g" in holder._parameters:
        return _parametrized(path, ["WeightNorm"], "torch.nn.utils.remove_weight_norm(module)")
    if last == "weight_orig" and "weight_mask" in holder._buffers:
        return (
            f"{path} is already pruned by torch.nn.utils.prune: call torch.nn.utils.prune.remove(module, 'weight') to "
            f"make its zeros permanent, or leave the layer out with exclude={path!r}"
        )
    return None


def _parametrized(module: str, kinds: list[str], remove: str) -> str:
    reason = (
        "divides by the norm of each row, which is 0 for a row without weights"
        if kinds == ["WeightNorm"]
        else "need not keep zeros"
    )
    return (
        f"the weight of {module or 'the model'} is computed by a parametrization ({', '.join(kinds)}) that {reason}: "
        f"leave the layer out with exclude={module or '*'!r}, or call {remove} before you create the optimizer"
    )


def _parametrizes_weight(path: str, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a list of parametrizations is that of the weight of a linear layer or a convolution."""
    parent, _, tensor = path.rpartition(".")
    owner = modules.get(parent.rpartition(".")[0] if "." in parent else "")
    return tensor == "weight" and owner is not None and is_matrix_module(owner)


def adapter_paths(modules: Mapping[str, nn.Module]) -> frozenset[str]:
    """The paths of everything that PEFT has added to a model."""
    imported = sys.modules.get("peft.tuners.tuners_utils")
    kind = getattr(imported, "BaseTunerLayer", None)
    if kind is None:
        return frozenset()
    return frozenset(
        f"{path}.{part}" if path else part
        for path, module in modules.items()
        if isinstance(module, kind)
        for part in module.adapter_layer_names
    )


def is_adapter(name: str, paths: frozenset[str]) -> bool:
    """Whether a parameter belongs to an adapter. Adapters are small, and start with zeros that have to be trained."""
    parts = name.split(".")
    return not LORA.isdisjoint(parts) or any(".".join(parts[:end]) in paths for end in range(1, len(parts)))
