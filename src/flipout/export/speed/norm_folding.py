"""Batch norms as part of the convolutions before them."""

from __future__ import annotations

from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ...graph.tracing import hooked, trace
from ...graph.tracing_errors import UntraceableError

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def fold_norms(model: nn.Module, example: tuple[Tensor, ...]) -> nn.Module:
    """The network with batch norms taken into the convolutions before them, where it can be traced."""
    try:
        followed = trace(model, example)
    except UntraceableError:
        return model
    traced = fx.GraphModule(followed.model, followed.graph, type(model).__name__)
    modules = dict(traced.named_modules())
    calls = [node.target for node in traced.graph.nodes if node.op == "call_module"]
    for node in list(traced.graph.nodes):
        if node.op != "call_module" or not node.args or not isinstance(node.args[0], fx.Node):
            continue
        before, norm = node.args[0], modules[str(node.target)]
        if before.op != "call_module" or len(before.users) > 1 or calls.count(before.target) > 1:
            continue
        name = str(before.target)
        if (fused := _fused(modules[name], norm)) is not None:
            modules[name] = fused
            traced.set_submodule(name, fused)
            node.replace_all_uses_with(before)
            traced.graph.erase_node(node)
    traced.delete_all_unused_submodules()
    traced.recompile()
    return traced.eval()


def _fused(layer: nn.Module, norm: nn.Module) -> nn.Module | None:
    """Both in one, where the norm has its own statistics and its channels are the layer's outputs."""
    if not isinstance(layer, CONVOLUTIONS) or not isinstance(norm, NORMS) or norm.running_mean is None:
        return None
    plain = type(layer) in CONVOLUTIONS and type(norm) in NORMS and not hooked(layer) and not hooked(norm)
    return fuse_conv_bn_eval(layer, norm) if plain else None
