"""Reading and writing weights as safetensors."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn

from ..errors import LabError


def load_weights(model: nn.Module, path: Path) -> None:
    """Load a safetensors file into a model. Every weight must be in the file, with the right shape."""
    try:
        state = load_file(path)
    except (OSError, SafetensorError) as error:
        raise LabError(f"{path} cannot be read as safetensors: {error}") from error
    here = model.state_dict()
    owners = {tensor.data_ptr(): name for name, tensor in here.items() if name in state}
    missing = [name for name, tensor in here.items() if name not in state and tensor.data_ptr() not in owners]
    extra = [name for name in state if name not in here]
    wrong = [name for name in state if name in here and state[name].shape != here[name].shape]
    if missing or extra or wrong:
        problems = (("missing", missing), ("unexpected", extra), ("of another shape", wrong))
        reasons = "; ".join(f"{what}: {', '.join(names[:5])}" for what, names in problems if names)
        raise LabError(f"{path} does not fit {type(model).__name__}: {reasons}")
    model.load_state_dict(state, strict=False)


def model_bytes(model: nn.Module) -> bytes:
    """Return the state of a model as safetensors: the same bytes for the same weights, shared tensors once."""
    seen: set[tuple[int, tuple[int, ...]]] = set()
    state = {}
    for name, tensor in model.state_dict().items():
        key = (tensor.data_ptr(), tuple(tensor.shape))
        if tensor.numel() == 0 or key not in seen:
            seen.add(key)
            state[name] = tensor.detach().cpu().contiguous().clone()
    return save(state, metadata={"format": "pt"})
