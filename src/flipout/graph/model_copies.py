"""Copies of a network that can be run and changed without any effect on the network itself."""

from __future__ import annotations

import copy

from torch import fx, nn

from ..modules import unwrapped
from .tracing_errors import first_line
from .unsupported_models import refuse_unsupported


def evaluation_copy(model: nn.Module) -> nn.Module:
    """Return a copy in evaluation mode, without wrappers such as DataParallel or torch.compile.

    Raise an error that names the fix if the network is scripted or quantized.
    """
    network = unwrapped(model)
    refuse_unsupported(network)
    try:
        return independent_copy(network).eval()
    except Exception as error:  # any attribute of the network may refuse to be copied
        advice = (
            "; if it was pruned with torch.nn.utils.prune, make the pruning permanent first with "
            "torch.nn.utils.prune.remove"
            if isinstance(error, RuntimeError)
            else ": keep what cannot be copied outside of the network"
        )
        raise ValueError(f"{type(network).__name__} cannot be copied ({first_line(error)}){advice}") from error


def independent_copy(model: nn.Module) -> nn.Module:
    """Return a deep copy whose errors are raised but not printed."""
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
