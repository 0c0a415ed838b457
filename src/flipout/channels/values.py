"""The values of the tensors of a recorded network."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from .record import Recording


class Values:
    """Computes the values of tensors for the example when they are asked for, in the order of the graph, on the CPU.

    Args:
        recording: the recorded network, without operations in place.
        network: the network, or one with the same structure.
    """

    def __init__(self, recording: Recording, network: nn.Module) -> None:
        self._interpreter = fx.Interpreter(recording.module, garbage_collect_values=False)
        tensors = dict((*network.named_parameters(), *network.named_buffers()))
        inputs = {node: tensors[name].detach().cpu() for node, name in recording.tensors.items()}
        self._interpreter.env = {**recording.others, **inputs}
        self._rest = iter(recording.graph.nodes)

    @torch.no_grad()
    def __call__(self, node: fx.Node) -> Any:
        """The value of a node; None if it is not one of the graph, but of a graph within it."""
        known: dict[fx.Node, Any] = self._interpreter.env
        for each in self._rest if node not in known and node.graph is self._interpreter.graph else ():
            if each.op != "placeholder":
                known[each] = self._interpreter.run_node(each)
            if each is node:
                break
        return known.get(node)
