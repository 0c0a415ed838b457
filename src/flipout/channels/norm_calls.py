"""The calls of modules that may be norms: one tensor goes in, one of the same shape comes out, no module is called.

A norm mixes all channels, so none of them could be removed. But a channel that is zero has no other influence than that
it counts. With `narrow_norms.py` the channels of a norm can be removed if they are zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import dropwhile, groupby

from torch import Tensor, fx

from .record import Recording, module_of


@dataclass(frozen=True)
class NormCall:
    """The operations of one call of a module.

    Args:
        path: the name of the module.
        nodes: its operations, one after the other.
        source: what it reads.
        result: what it returns.
        tensors: its parameters and buffers.
    """

    path: str
    nodes: Sequence[fx.Node]
    source: fx.Node
    result: fx.Node
    tensors: Sequence[fx.Node]


def norm_calls(recording: Recording) -> list[NormCall]:
    """The calls of all modules that could be norms, in their order."""
    nodes = [node for node in recording.graph.nodes if node.op == "call_function"]
    paths = {module_of(node) for node in nodes}
    found = []
    for path, group in groupby(nodes, module_of):
        if path and not any(other.startswith(f"{path}.") for other in paths):
            found.append(_norm_call(recording, path, list(dropwhile(_is_cast, group))))
    return [call for call in found if call is not None]


def _is_cast(node: fx.Node) -> bool:
    """Whether a node only changes the type. If that is the right one already, others use the result in place of what
    the module got."""
    return str(node.target).startswith(("aten.to.", "aten._assert_tensor_metadata."))


def _has_groups(node: fx.Node) -> bool:
    """Whether a node is a norm of several groups, to which a channel belongs by its place."""
    return str(node.target).startswith("aten.group_norm.") and bool(node.args[1] != 1)


def _norm_call(recording: Recording, path: str, nodes: list[fx.Node]) -> NormCall | None:
    """A call of a module; None if it has several inputs or outputs, uses tensors of others, changes the shape, or if
    the places of its channels matter."""
    read = dict.fromkeys(each for node in nodes for each in node.all_input_nodes if each not in nodes)
    tensors = [node for node in read if node in recording.tensors]
    sources = [node for node in read if node not in recording.tensors]
    results = [node for node in nodes if any(user not in nodes for user in node.users)]
    is_own = all(recording.tensors[node].rpartition(".")[0] == path for node in tensors)
    if len(sources) != 1 or len(results) != 1 or not tensors or not is_own or any(map(_has_groups, nodes)):
        return None
    given, returned = (node.meta.get("val") for node in (sources[0], results[0]))
    is_kept = isinstance(given, Tensor) and isinstance(returned, Tensor) and given.shape == returned.shape
    return NormCall(path, nodes, sources[0], results[0], tensors) if is_kept else None
