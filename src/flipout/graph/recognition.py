"""Find the rule of a call in the table of operations, and explain why a call has none."""

from __future__ import annotations

from torch import nn

from .calls import Call
from .inserted_modules import INSERTED_MODULES
from .operations import FUNCTIONS, MODULES, SIZE_QUERIES
from .rules.base_rules import Rule
from .tracing import has_hooks


def recognize(call: Call, shared: set[str]) -> Rule | None:
    """Return the rule of a call; None if the operation is opaque.

    Args:
        call: the call.
        shared: the names of modules that are called more than once or share their weights.
    """
    node = call.node
    if not call.sources or call.source not in call.shapes:
        return None
    if call.module is not None:
        plain_call = len(node.args) == 1 and not node.kwargs and node in call.shapes
        if not plain_call or str(node.target) in shared or has_hooks(call.module):
            return None
        recognizer = MODULES.get(type(call.module))
    elif node.op in ("call_function", "call_method") and (node in call.shapes or node.target in SIZE_QUERIES):
        recognizer = FUNCTIONS.get(node.target)
    else:
        return None
    return None if recognizer is None else recognizer(call)


def opaque_rule(call: Call) -> Rule:
    """Return the rule of a call that is not recognized: it reads whole tensors."""
    return Rule(call.node, call.sources, [None] * len(call.sources))


def explain_opaque(call: Call, shared: set[str]) -> str | None:
    """Return a note about a call that is not recognized; None if that costs nothing."""
    node, module = call.node, call.module
    reads_channels = any(call.channels[source].axis is not None for source in call.sources)
    is_layer = isinstance(module, nn.Linear | nn.modules.conv._ConvNd)
    if node.op == "output" or isinstance(module, INSERTED_MODULES) or not (is_layer or reads_channels):
        return None
    consequence = "it is left unchanged, and all channels of its input are kept"
    if module is None:
        function = getattr(node.target, "__name__", str(node.target))
        return f"{node.name} ({function}) may mix channels: {consequence}"
    reason = "may mix channels"
    if str(node.target) in shared:
        reason = "is called more than once or shares its weights"
    elif has_hooks(module):
        reason = "has hooks"
    return f"{node.target} ({type(module).__name__}) {reason}: {consequence}"
