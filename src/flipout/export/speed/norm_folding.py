"""Fold batch norms into the convolutions before them."""

from __future__ import annotations

from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ...graph.copies import UnsupportedNetworkError, has_hooks, without_printed_errors
from ...graph.tracing import trace

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def fold_norms(model: nn.Module, example: tuple[Tensor, ...]) -> nn.Module:
    """Return the network with batch norms folded into convolutions; the network itself if it cannot be traced."""
    try:
        traced = trace(model, example)
    except UnsupportedNetworkError:
        return model
    folded = fx.GraphModule(traced.model, traced.graph, type(model).__name__)
    modules = dict(folded.named_modules())
    calls = [node.target for node in folded.graph.nodes if node.op == "call_module"]
    for node in list(folded.graph.nodes):
        if node.op != "call_module" or not node.args or not isinstance(node.args[0], fx.Node):
            continue
        before, norm = node.args[0], modules[str(node.target)]
        if before.op != "call_module" or len(before.users) > 1 or calls.count(before.target) > 1:
            continue
        name = str(before.target)
        if (fused := _fused(modules[name], norm)) is not None:
            modules[name] = fused
            folded.set_submodule(name, fused)
            node.replace_all_uses_with(before)
            folded.graph.erase_node(node)
    folded.delete_all_unused_submodules()
    folded.recompile()
    return without_printed_errors(folded.eval())


def _fused(layer: nn.Module, norm: nn.Module) -> nn.Module | None:
    """Return a convolution and a batch norm with running statistics as one layer; None for other modules."""
    if not isinstance(layer, CONVOLUTIONS) or not isinstance(norm, NORMS) or norm.running_mean is None:
        return None
    is_plain = type(layer) in CONVOLUTIONS and type(norm) in NORMS and not has_hooks(layer) and not has_hooks(norm)
    return fuse_conv_bn_eval(layer, norm) if is_plain else None
