"""The modules of a model: their plain names, which of them hold a weight to prune, and the channels of that weight."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.parametrize import ParametrizationList
from torch.optim.swa_utils import AveragedModel

RECURRENT = re.compile(r"weight_(ih|hh|hr)(_l\d+(_reverse)?)?")
"""The names of the matrices of recurrent modules: for the input, the state and the projection of the state."""
ATTENTION = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
"""The names of the matrices that `nn.MultiheadAttention` computes queries, keys and values with."""
LORA = frozenset({"lora_A", "lora_B"})
"""Parts of the names of LoRA adapters, in PEFT and elsewhere."""


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside the wrappers of `torch.compile`, data parallelism and weight averaging."""
    while True:
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel, AveragedModel)):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def plain_name(name: str) -> str:
    """The name of a module or a tensor without the prefixes of `torch.compile`."""
    return name.replace("_orig_mod.", "")


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, without the prefixes of `torch.compile` and data parallelism."""
    inner = unwrapped(model)
    tensors = [*inner.named_parameters(), *inner.named_buffers()]
    return {plain_name(name): tensor for name, tensor in tensors}


def normalized_features(model: nn.Module) -> frozenset[int]:
    """The numbers of features of the batch norms and instance norms of a model."""
    return frozenset(module.num_features for module in model.modules() if isinstance(module, _NormBase))


def is_transposed(module: nn.Module) -> bool:
    """Whether a module is Hugging Face's Conv1D: a linear layer whose matrix is stored as inputs x outputs."""
    imported = sys.modules.get("transformers.pytorch_utils")  # without it there is no such module
    kind = getattr(imported, "Conv1D", None)
    return kind is not None and isinstance(module, kind)


def is_matrix_module(module: nn.Module) -> bool:
    """Whether a module is linear or a convolution."""
    return isinstance(module, (nn.Linear, _ConvNd)) or is_transposed(module)


def is_stacked(module: nn.Module) -> bool:
    """Whether a module is a stack of experts of transformers: its matrices have a first dimension for the experts."""
    return any(
        kind.__module__.startswith("transformers.") and kind.__name__.endswith("Experts")
        for kind in type(module).__mro__
    )


def inputs_first(module: nn.Module) -> bool:
    """Whether the weights of a module are stored with their inputs before their outputs."""
    if is_stacked(module):
        return bool(getattr(module, "is_transposed", False))
    return is_transposed(module) or isinstance(module, _ConvTransposeNd)


def is_weight_of(module: nn.Module, name: str) -> bool:
    """Whether a module multiplies its inputs with the parameter of this name: a matrix, a kernel, or stacked ones."""
    if is_matrix_module(module):
        return name == "weight"
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        return RECURRENT.fullmatch(name) is not None
    if isinstance(module, nn.MultiheadAttention):
        return name in ATTENTION
    if not is_stacked(module):
        return False
    tensor = module._parameters.get(name)
    return tensor is not None and tensor.ndim == 3


def is_weight(name: str, holder: nn.Module, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a parameter is a weight of a module that torch or transformers has, or what spectral norm computes one
    from.

    Spectral norm divides by the largest singular value: a zero stays a zero in the weight.
    """
    path, _, last = name.rpartition(".")
    if isinstance(holder, ParametrizationList):
        spectral = [type(kind) for kind in holder] == [_SpectralNorm]
        return spectral and last == "original" and _parametrizes_weight(path, modules)
    spectral = last == "weight_orig" and "weight_u" in holder._buffers and is_matrix_module(holder)  # the old form
    return spectral or is_weight_of(holder, last)


def refusal(name: str, holder: nn.Module) -> str | None:
    """Why nothing can be pruned with a parameter like this, with the fix. None if that is not the case."""
    path, _, last = name.rpartition(".")
    if last == "weight_orig" and "weight_mask" in holder._buffers and is_matrix_module(holder):
        return (
            f"{path} is already pruned by torch.nn.utils.prune: call torch.nn.utils.prune.remove(module, 'weight') to "
            f"make its zeros permanent, or leave the layer out with exclude={path!r}"
        )
    return None


def parametrization(name: str, holder: nn.Module, modules: Mapping[str, nn.Module]) -> str | None:
    """Why the weight that is computed from a parameter is left out, with the fix. None if that is not the case."""
    path, _, last = name.rpartition(".")
    if isinstance(holder, ParametrizationList):
        if not _parametrizes_weight(path, modules) or is_weight(name, holder, modules):
            return None
        owner, _, tensor = path.rpartition("parametrizations.")
        kinds = [type(kind).__name__.lstrip("_") for kind in holder]
        remove = f"torch.nn.utils.parametrize.remove_parametrizations(module, {tensor!r})"
        return _parametrized(owner.rstrip("."), tensor, kinds, remove)
    tensor, both = last[:-2], {f"{last[:-2]}_g", f"{last[:-2]}_v"}  # the length of each row, and its direction
    if last in both and both <= holder._parameters.keys() and is_weight_of(holder, tensor):
        return _parametrized(path, tensor, ["WeightNorm"], f"torch.nn.utils.remove_weight_norm(module, {tensor!r})")
    return None


def _parametrized(module: str, tensor: str, kinds: list[str], remove: str) -> str:
    reason = (
        "divides by the norm of each row, which is 0 for a row without weights"
        if kinds == ["WeightNorm"]
        else "need not keep zeros"
    )
    return (
        f"{module or 'the model'}: its {tensor} is computed by a parametrization ({', '.join(kinds)}) that {reason}. "
        f"To prune it, call {remove} before you create the optimizer"
    )


def _parametrizes_weight(path: str, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a list of parametrizations is that of a weight."""
    parent, _, tensor = path.rpartition(".")
    owner = modules.get(parent.rpartition(".")[0] if "." in parent else "")
    return owner is not None and is_weight_of(owner, tensor)


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


class ChannelTally(NamedTuple):
    """How many input and output channels a weight has, and how many of them are dead. None if it has no channels."""

    dead_inputs: int | None = None
    inputs: int | None = None
    dead_outputs: int | None = None
    outputs: int | None = None


def groups_of(module: nn.Module) -> int:
    """The groups of a convolution; 1 for every other module."""
    return module.groups if isinstance(module, _ConvNd) else 1


def channels_of(mask: Tensor, module: nn.Module, groups: int) -> ChannelTally:
    """Count the channels of a whole weight, from its mask. A bias and an embedding have none."""
    stacked = mask.ndim == 3 and is_stacked(module)
    kernel = isinstance(module, _ConvNd)
    if not mask.numel() or not (kernel or stacked or (mask.ndim == 2 and not isinstance(module, nn.Embedding))):
        return ChannelTally()
    alive = mask if stacked else mask.reshape(groups, mask.shape[0] // groups, mask.shape[1], -1).any(-1)
    alive = alive.transpose(1, 2) if inputs_first(module) else alive
    reached, read = alive.any(2), alive.any(1)
    return ChannelTally(int((~read).sum()), read.numel(), int((~reached).sum()), reached.numel())
