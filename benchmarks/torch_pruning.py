"""Torch-Pruning on the same networks: an optional benchmark, left out if the package is not installed.

It is used as its documentation says: the magnitude of groups, the same share of every layer, whole heads, and the
output layers ignored. It takes a share of channels, which is searched so that about half of the multiply-adds with
weights are left. The network must run and train afterwards. Torch-Pruning changes what the network computes, so outputs
are not compared. A hidden state that the network returns may become narrower; the result says so.
"""

from __future__ import annotations

import copy
import importlib.util
import signal
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from flipout.channels.comparison import output_leaves
from flipout.channels.graph import ChannelGraph
from flipout.channels.record import without_cache

TRIALS = 4
SECONDS = 120
"""The time of the processor that one network may take. Other work on the machine does not shorten it."""


def available() -> bool:
    return importlib.util.find_spec("torch_pruning") is not None


def examine(model: nn.Module, inputs: dict[str, Tensor], loss_of: Callable[[Any], Tensor]) -> str | float:
    """The share of the multiply-adds that is left, or what fails."""
    model.eval()
    graph = ChannelGraph.of(model, (), inputs)
    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        return _search(model, graph, inputs, loss_of)
    except TimeoutError:
        return "takes too long"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _stop(number: int, frame: Any) -> None:
    raise TimeoutError


def _search(
    model: nn.Module, graph: ChannelGraph, inputs: dict[str, Tensor], loss_of: Callable[[Any], Tensor]
) -> str | float:
    low, high, best, narrower, failed = 0.0, 1.0, 1.0, False, False
    for _ in range(TRIALS):
        ratio = (low + high) / 2
        try:
            left, fewer = _left(model, graph, inputs, ratio, loss_of)
        except TimeoutError:
            raise
        except Exception:  # any error of the package, or of the network that it returns
            failed, high = True, ratio
            continue
        if abs(left - 0.5) < abs(best - 0.5):
            best, narrower = left, fewer
        low, high = (ratio, high) if left > 0.5 else (low, ratio)
    if best == 1 and failed:
        return "fails"
    return f"{best:.0%}, narrower output" if narrower else round(best, 3)


def _left(
    model: nn.Module, graph: ChannelGraph, inputs: dict[str, Tensor], ratio: float, loss_of: Callable[[Any], Tensor]
) -> tuple[float, bool]:
    """The share of the multiply-adds that is left, and whether outputs have other shapes than before."""
    import torch_pruning as tp

    network: Any = copy.deepcopy(model)
    modules = dict(network.named_modules())
    returned = [
        modules[name.rpartition(".")[0]]
        for name, reasons in graph.reasons.items()
        if any("the network returns it" in reason for reason in reasons) and name.endswith(".weight")
    ]
    with without_cache(network):
        shapes = _shapes(network(**inputs))
        pruner = tp.pruner.BasePruner(
            network,
            inputs,
            importance=tp.importance.GroupMagnitudeImportance(p=2),
            pruning_ratio=ratio,
            ignored_layers=returned,
            num_heads=_heads(network),
            prune_num_heads=True,
            prune_head_dims=False,
            output_transform=lambda output: [each for each in output_leaves(output) if isinstance(each, Tensor)],
        )
        pruner.step()
        outputs = network(**inputs)
        loss_of(network.train()(**inputs)).backward()
        left = ChannelGraph.of(network, (), inputs).multiply_adds() / graph.multiply_adds()
        return left, _shapes(outputs) != shapes


def _shapes(output: Any) -> list[torch.Size]:
    return [leaf.shape for leaf in output_leaves(output) if isinstance(leaf, Tensor)]


def _heads(network: nn.Module) -> dict[nn.Module, int]:
    """The layers of queries, keys and values, with their numbers of heads."""
    heads: dict[nn.Module, int] = {}
    for module in network.modules():
        number = next(
            (getattr(module, key) for key in ("num_attention_heads", "num_heads", "n_heads") if hasattr(module, key)),
            None,
        )
        for name, child in module.named_children():
            if isinstance(number, int) and isinstance(child, nn.Linear) and any(part in name for part in "qkv"):
                heads[child] = number
    return heads
