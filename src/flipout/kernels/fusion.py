"""Make what follows a direct sparse layer a part of it: a ReLU, or a sum with another tensor and a ReLU."""

from __future__ import annotations

import operator

import torch
from torch import fx, nn
from torch.nn import functional

from .direct_layers import DirectLayer, with_clip

RELUS = {torch.relu, torch.relu_, functional.relu, functional.relu_, "relu", "relu_"}
SUMS = {operator.add, operator.iadd, torch.add, "add", "add_"}


def fuse(network: nn.Module) -> nn.Module:
    """Return a network with direct sparse layers as a graph of torch.fx, and fused; itself if it cannot be traced."""
    if not any(isinstance(module, DirectLayer) for module in network.modules()):
        return network
    tracer = _Tracer()
    try:
        graph = tracer.trace(network)
        network = fx.GraphModule(tracer.root, graph, type(network).__name__)
    except Exception:  # the user's code may raise any error
        return network
    modules = dict(network.named_modules())
    for node in list(network.graph.nodes):
        if node.op == "call_module" and type(modules[str(node.target)]) is nn.Identity:
            node.replace_all_uses_with(node.args[0])
            network.graph.erase_node(node)
    calls = [node.target for node in network.graph.nodes if node.op == "call_module"]
    order = {node: number for number, node in enumerate(network.graph.nodes)}
    for node in list(network.graph.nodes):
        layer = modules.get(str(node.target)) if node.op == "call_module" else None
        if not isinstance(layer, DirectLayer) or calls.count(node.target) > 1:
            continue
        if (total := _only_user(node)) is not None and (addend := _addend(total, node)) is not None:
            relu = _only_user(total)
            # The layer must run where the sum was, because the other tensor may be computed after it.
            if relu is not None and _is_relu(relu, modules) and _is_last(node, total, order):
                node.args = (node.args[0], addend)
                total.replace_all_uses_with(node)
                total.prepend(node)
                network.graph.erase_node(total)
        following = _only_user(node)
        if following is not None and _is_relu(following, modules):
            with_clip(layer)
            following.replace_all_uses_with(node)
            network.graph.erase_node(following)
    network.delete_all_unused_submodules()
    network.graph.lint()
    network.recompile()
    return network


class _Tracer(fx.Tracer):
    """Sees layers as single operations, sparse ones too."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m).__module__.startswith("flipout.") or super().is_leaf_module(m, module_qualified_name)


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _is_relu(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return type(modules[str(node.target)]) is nn.ReLU
    return node.op in ("call_function", "call_method") and node.target in RELUS


def _addend(total: fx.Node, node: fx.Node) -> fx.Node | None:
    """The other tensor of a sum with the output of a layer; None if it is not such a sum."""
    if total.op not in ("call_function", "call_method") or total.target not in SUMS or total.kwargs:
        return None
    others = [each for each in total.args if each is not node]
    return others[0] if len(total.args) == 2 and len(others) == 1 and isinstance(others[0], fx.Node) else None


def _is_last(node: fx.Node, total: fx.Node, order: dict[fx.Node, int]) -> bool:
    """Whether a layer can run at the place of a sum: its input must not be changed in place in between."""
    between = [each for each, number in order.items() if order[node] < number < order[total]]
    return not any(
        node.args[0] in each.args and (str(each.target).endswith("_") or each.target is operator.iadd)
        for each in between
    )
