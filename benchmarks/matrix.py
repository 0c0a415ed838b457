"""Channels of many architectures: pruned to a half, compacted and compared. `make matrix` writes the table of the docs.

Each network is trained for a few steps with FlipOut and granularity="channel", sparsity=0.5, and then compacted. The
columns: the share of the prunable weights that channels can reach; what is left of the parameters and of the
multiply-adds with weights; whether the outputs are equal and the class is that of the network.
"""

from __future__ import annotations

import argparse
import json
import re
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import flipout
from benchmarks.architectures import ARCHITECTURES
from flipout import export
from flipout.channels.comparison import describe_difference, output_leaves
from flipout.channels.graph import ChannelGraph
from flipout.channels.record import without_cache

STEPS = 8


def loss_of(output: Any) -> Tensor:
    leaves = [leaf for leaf in output_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
    return torch.stack([leaf[leaf.isfinite()].square().mean() for leaf in leaves]).sum()


def examine(name: str, sparsity: float) -> dict[str, Any]:
    """One row of the table."""
    torch.manual_seed(0)
    model, inputs = ARCHITECTURES[name]()
    row: dict[str, Any] = {"name": name}
    start = time.perf_counter()
    graph = ChannelGraph.of(model, (), inputs)
    row["seconds"] = round(time.perf_counter() - start, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    options: dict[str, Any] = {"steps": STEPS, "granularity": "channel", "exclude": EXCLUDED.get(name)}
    pruner = flipout.FlipOut(model, optimizer, sparsity=sparsity, **options)
    try:
        with without_cache(model):
            for _ in range(STEPS):
                optimizer.zero_grad()
                loss_of(model.train()(**inputs)).backward()
                optimizer.step()
    except ValueError as error:
        pruner.remove()
        fewest = re.search(r"fewer than ([\d,]+)", str(error))
        reason = f"at least {int(fewest[1].replace(',', '')) / pruner.prunable:.0%} stay" if fewest else str(error)
        return row | {"problem": reason}
    row["sparsity"] = round(pruner.sparsity, 3)
    pruner.remove()
    model.eval()
    small = export.compact(model, inputs)
    left = ChannelGraph.of(small, (), inputs)
    with torch.no_grad(), without_cache(model), without_cache(small):
        outputs = []
        for each in (model, small):
            torch.manual_seed(1)
            outputs.append(each(**inputs))
        difference = describe_difference(outputs[0], outputs[1], 1e-3)
    row["parameters"] = round(_parameters(small) / _parameters(model), 3)
    row["multiply_adds"] = round(left.multiply_adds() / graph.multiply_adds(), 3)
    row["equal"] = difference is None
    row["class"] = type(small) is type(model)
    return row


EXCLUDED = {"wav2vec2": "*pos_conv_embed*"}
"""A weight with a parametrization that zeros do not survive."""


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def as_table(rows: list[dict[str, Any]]) -> str:
    """The rows as a table of Markdown."""
    lines = ["| architecture | sparsity | parameters left | multiply-adds left | equal outputs | own class |"]
    lines.append("|---|---|---|---|---|---|")
    for row in rows:
        if "problem" in row:
            lines.append(f"| {row['name']} | {row['problem']} | | | | |")
        else:
            yes = ["yes" if row[key] else "no" for key in ("equal", "class")]
            shares = [f"{row[key]:.0%}" for key in ("sparsity", "parameters", "multiply_adds")]
            lines.append(f"| {row['name']} | {' | '.join([*shares, *yes])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="architectures; all of them without a name")
    parser.add_argument("--sparsity", type=float, default=0.5)
    parser.add_argument("--output", type=Path, help="a file for the rows, as JSON")
    options = parser.parse_args()
    rows = []
    for name in options.names or ARCHITECTURES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                rows.append(examine(name, options.sparsity))
            except Exception as error:  # the table should have all other rows
                rows.append({"name": name, "problem": f"{type(error).__name__}: {str(error).splitlines()[0]}"})
        print(rows[-1], flush=True)
    print(as_table(rows))
    if options.output:
        options.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
