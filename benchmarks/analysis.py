"""The seconds that it takes to find the channels of a network.

Each network is measured in a process of its own, `python -m benchmarks.analysis NETWORK`, because a process keeps the
recordings it has made.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from typing import Any

import torch
from torch import nn

import flipout
from flipout.channels.graph import ChannelGraph
from flipout_lab import build

NETWORKS = ("resnet18", "bert-base")
SPARSITY = 0.5


def network(name: str) -> tuple[nn.Module, dict[str, Any]]:
    """A network, and the arguments of a call."""
    if name == "resnet18":
        return build("resnet18", (3, 32, 32)), {"x": torch.zeros(2, 3, 32, 32)}
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig()), {"input_ids": torch.zeros(2, 16, dtype=torch.long)}


def measure_network(name: str) -> dict[str, float]:
    """Seconds for the graph of channels, and for the trial on a copy at the first step of a training."""
    model, call = network(name)
    started = time.perf_counter()
    ChannelGraph.of(model, (), call)
    graph = time.perf_counter() - started
    pruner = flipout.GlobalMagnitude(
        *(model, torch.optim.SGD(model.parameters(), lr=0.1)),
        sparsity=SPARSITY,
        steps=10**6,
        granularity="channel",
        compile=False,
    )
    model(**call)
    started = time.perf_counter()
    pruner.units.ready(model)
    return {"graph": graph, "trial": time.perf_counter() - started}


def measure() -> dict[str, dict[str, float]]:
    """Seconds by what is done, and by network."""
    found = {}
    for name in NETWORKS:
        command = [sys.executable, "-m", "benchmarks.analysis", name]
        found[name] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return {what: {name: taken[what] for name, taken in found.items()} for what in ("graph", "trial")}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(measure_network(sys.argv[1])))
