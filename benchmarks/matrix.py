"""Networks of many architectures: pruned, compacted, compared and reloaded. `make matrix` writes the table of the docs.

Each network is trained for a few steps with FlipOut, granularity="channel", target="macs" and sparsity=0.5, so to half
of its multiply-adds with weights. The columns: whether single weights are pruned to exactly a half; what is left of the
parameters and of the multiply-adds after compaction; whether the outputs are equal, and the class is that of the
network; whether the network can be shrunk in training; whether it computes the same after it was saved and read into a
new model, and as an ONNX file. A network that cannot lose half of its multiply-adds is tried again with residual=True.
If torch-pruning is installed, or is in the folder that `--torch-pruning` names, it is tried on the same
networks; see `benchmarks/torch_pruning.py`.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import flipout
from benchmarks import torch_pruning
from benchmarks.architectures import ARCHITECTURES
from flipout import export
from flipout.channels.comparison import describe_difference, output_leaves
from flipout.channels.copies import first_line
from flipout.channels.graph import ChannelGraph
from flipout.channels.record import without_cache
from flipout.channels.trial import ByPosition

STEPS = 8
PAGE = Path(__file__).parent.parent / "docs" / "architectures.md"
START, END = "<!-- table: made by `make matrix` -->", "<!-- end of the table -->"
Row = dict[str, Any]


def loss_of(output: Any) -> Tensor:
    leaves = [leaf for leaf in output_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
    return torch.stack([leaf[leaf.isfinite()].square().mean() for leaf in leaves]).sum()


def train(model: nn.Module, inputs: dict[str, Tensor], **options: Any) -> flipout.Pruner:
    """A pruner after a short training."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    pruner = flipout.FlipOut(model, optimizer, steps=STEPS, **options)
    try:
        with without_cache(model):
            for _ in range(STEPS):
                optimizer.zero_grad()
                loss_of(model.train()(**inputs)).backward()
                optimizer.step()
    except BaseException:
        pruner.remove()
        raise
    return pruner


@torch.no_grad()
def difference(one: nn.Module, other: nn.Module, inputs: dict[str, Tensor]) -> str | None:
    """How the outputs of two networks differ; None if they do not."""
    outputs = []
    for each in (one.eval(), other.eval()):
        torch.manual_seed(1)  # some networks draw numbers
        with without_cache(each):
            outputs.append(each(**inputs))
    return describe_difference(outputs[0], outputs[1], 1e-3)


def made(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    return ARCHITECTURES[name]()


def examine(name: str, sparsity: float, target: str) -> Row:
    """One row of the table."""
    row: Row = {"name": name, "unstructured": unstructured(name, sparsity)}
    model, inputs = made(name)
    start = time.perf_counter()
    whole = ChannelGraph.of(model, (), inputs).multiply_adds()
    row["seconds"] = round(time.perf_counter() - start, 1)
    try:
        pruner = train(model, inputs, sparsity=sparsity, granularity="channel", target=target)
    except ValueError:
        row["residual"] = True
        model, inputs = made(name)
        try:
            pruner = train(model, inputs, sparsity=sparsity, granularity="channel", target=target, residual=True)
        except ValueError as error:
            return row | {"problem": _reason(error)}
    row["sparsity"] = round(pruner.sparsity, 3)
    row["shrink"] = shrinks(pruner, inputs)
    pruner.remove()
    small = export.compact(model.eval(), inputs)
    row["parameters"] = round(_parameters(small) / _parameters(model), 3)
    row["multiply_adds"] = round(ChannelGraph.of(small, (), inputs).multiply_adds() / whole, 3)
    row["equal"] = difference(model, small, inputs) is None
    row["class"] = type(small) is type(model)
    row["reload"] = reloads(name, small, inputs)
    row["onnx"] = exports(small, inputs)
    return row


def unstructured(name: str, sparsity: float) -> bool:
    """Whether single weights are pruned to exactly the sparsity."""
    model, inputs = made(name)
    try:
        pruner = train(model, inputs, sparsity=sparsity)
        pruner.check()
        exact = pruner.nonzero == pruner.plan()[-1].nonzero
        pruner.remove()
    except Exception:  # the table should have all other columns
        return False
    return exact


def shrinks(pruner: flipout.Pruner, inputs: dict[str, Tensor]) -> bool:
    """Whether the network gets smaller in training, with the same outputs."""
    whole = copy.deepcopy(pruner.model)
    try:
        with without_cache(pruner.model):
            pruner.shrink(inputs)
        equal = difference(whole, pruner.model, inputs) is None
    except Exception as error:
        print(f"not shrunk: {first_line(error)}", flush=True)
        return False
    smaller = pruner.computed < pruner.prunable
    pruner.expand()
    return smaller and equal


def reloads(name: str, small: nn.Module, inputs: dict[str, Tensor]) -> bool:
    """Whether a file of the network restores it in a new model."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            export.save_compacted(small, Path(folder) / "small.safetensors")
            again = export.load_compacted(Path(folder) / "small.safetensors", lambda: ARCHITECTURES[name]()[0])
        return difference(small, again, inputs) is None
    except Exception:
        return False


class Flat(ByPosition):
    """Returns the tensors of a network's output, whatever they are nested in."""

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(leaf for leaf in output_leaves(super().forward(*tensors)) if isinstance(leaf, Tensor))


def exports(small: nn.Module, inputs: dict[str, Tensor]) -> bool:
    """Whether the network is written as ONNX, with the same outputs in onnxruntime."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            export.to_onnx(Flat(small, (), inputs), Path(folder) / "small.onnx", tuple(inputs.values()))
    except Exception as error:
        print(f"no ONNX: {first_line(error)[:300]}", flush=True)
        return False
    return True


def _reason(error: ValueError) -> str:
    fewest = re.search(r"fewer than ([\d,]+) .*? but ([\d,]+)", str(error))
    if fewest is None:
        return str(error).splitlines()[0]
    least, asked = (int(number.replace(",", "")) for number in fewest.groups())
    return f"at least {least / (2 * asked):.0%} stay"  # a half was asked for


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


COLUMNS = {
    "unstructured": "single weights",
    "parameters": "parameters left",
    "multiply_adds": "multiply-adds left",
    "equal": "equal outputs",
    "class": "own class",
    "shrink": "shrinks",
    "reload": "reloads",
    "onnx": "ONNX",
}


def as_table(rows: list[Row]) -> str:
    """The rows as a table of Markdown."""
    columns = COLUMNS | ({"torch_pruning": "Torch-Pruning"} if any("torch_pruning" in row for row in rows) else {})
    lines = [f"| architecture | {' | '.join(columns.values())} |", "|---" * (1 + len(columns)) + "|"]
    for row in rows:
        cells = [_cell(row.get(key, "")) for key in columns]
        if "problem" in row:
            cells[1] = row["problem"]
        name = f"{row['name']}, `residual=True`" if row.get("residual") else row["name"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    good = [row for row in rows if "problem" not in row and row["equal"] and 0.45 <= row["multiply_adds"] <= 0.55]
    lines += ["", f"{len(good)} of {len(rows)} have 45 to 55 % of their multiply-adds left, with equal outputs."]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.0%}" if isinstance(value, float) else str(value)


def _write(output: Path | None, rows: dict[str, Row]) -> None:
    if output is not None:
        ordered = [rows[name] for name in ARCHITECTURES if name in rows]
        output.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="architectures; all of them without a name")
    parser.add_argument("--sparsity", type=float, default=0.5)
    parser.add_argument("--target", default="macs")
    parser.add_argument("--output", type=Path, help="a file for the rows, as JSON; rows that it has are not run again")
    parser.add_argument("--page", action="store_true", help="write the table into docs/architectures.md")
    parser.add_argument("--torch-pruning", type=Path, help="a folder with torch-pruning: pip install --target FOLDER")
    options = parser.parse_args()
    if options.torch_pruning:
        sys.path.append(str(options.torch_pruning))
    known: list[Row] = json.loads(options.output.read_text()) if options.output and options.output.exists() else []
    rows = {row["name"]: row for row in known}
    for name in options.names or [name for name in ARCHITECTURES if name not in rows]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                rows[name] = examine(name, options.sparsity, options.target)
            except Exception as error:  # the table should have all other rows
                rows[name] = {"name": name, "problem": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        print(rows[name], flush=True)
        _write(options.output, rows)
    for name, row in rows.items():
        if torch_pruning.available() and "torch_pruning" not in row:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                row["torch_pruning"] = torch_pruning.examine(*made(name), loss_of)
            print(name, row["torch_pruning"], flush=True)
            _write(options.output, rows)
    table = as_table([rows[name] for name in ARCHITECTURES if name in rows])
    print(table)
    if options.page:
        before, rest = PAGE.read_text(encoding="utf-8").split(START)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{START}\n\n{table}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
