"""The recorded hashes, and a command that records them: `python -m tests.golden.record [configuration ...]`.

Without names it records every configuration. Hashes belong to an environment: the bits of sums and matrix products
depend on the version of torch and on the processor.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .configurations import CONFIGURATIONS, uniform
from .on_two_ranks import train_on_two_ranks
from .training import Look, Trained, difference, digest, train

FILE = Path(__file__).parent / "recorded.json"


@cache
def trained(name: str) -> Trained:
    """The looks at a configuration. Those with sharded weights are all trained at once."""
    if not CONFIGURATIONS[name].sharded:
        return train(CONFIGURATIONS[name])
    return _sharded()[name]


@cache
def _sharded() -> dict[str, Trained]:
    return train_on_two_ranks([name for name, each in CONFIGURATIONS.items() if each.sharded])


@cache
def environment() -> dict[str, str]:
    """What the bits of a training depend on."""
    return {
        "torch": torch.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
        "arithmetic": _arithmetic(),
    }


def _arithmetic() -> str:
    """A hash of some matrix products, sums and functions: libraries choose their code by more than the capability."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        x, y, kernels = uniform(1, 16, 12), uniform(2, 12, 40), uniform(3, 8, 2, 3, 3)
        products = [x @ y, y @ y.T, nn.functional.conv2d(uniform(4, 6, 2, 6, 6), kernels, padding=1)]
        others = [y.square().sum(), uniform(5, 5000).norm(), y.log_softmax(1), y.abs().pow(1.5), y.exp()]
        return digest((str(number), tensor) for number, tensor in enumerate([*products, *others]))
    finally:
        torch.set_num_threads(threads)


def read() -> list[dict[str, Any]]:
    """The records: an environment, and the looks at each configuration there."""
    records: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else []
    return records


def recorded(name: str) -> list[Look] | None:
    """The looks that were recorded in this environment."""
    for record in read():
        if record["environment"] == environment():
            looks: list[Look] | None = record["configurations"].get(name)
            return looks
    return None


def write(looks: dict[str, list[Look]]) -> None:
    """Replace the looks at some configurations, in this environment."""
    records = read()
    if all(record["environment"] != environment() for record in records):
        records.append({"environment": environment(), "configurations": {}})
    for record in records:
        if record["environment"] == environment():
            known = record["configurations"] | looks
            record["configurations"] = {name: known[name] for name in CONFIGURATIONS if name in known}
    FILE.write_text("[\n" + ",\n".join(map(_text, records)) + "\n]\n", encoding="utf-8")


def _text(record: dict[str, Any]) -> str:
    """A record as JSON, with a line for each look."""
    configurations = [
        f"{json.dumps(name)}: [\n" + ",\n".join(f"  {json.dumps(look)}" for look in looks) + "\n]"
        for name, looks in record["configurations"].items()
    ]
    head = f'{{"environment": {json.dumps(record["environment"])},\n"configurations": {{\n'
    return head + ",\n".join(configurations) + "\n}}"


def main(names: Sequence[str]) -> None:
    if unknown := [name for name in names if name not in CONFIGURATIONS]:
        sys.exit(f"no configuration {', '.join(unknown)}; there are {', '.join(CONFIGURATIONS)}")
    found = {}
    for name in names or CONFIGURATIONS:
        found[name], resumed = trained(name)
        if text := difference(found[name], resumed):
            sys.exit(f"{name} cannot be recorded: its resumed training differs; {text}")
        before = recorded(name)
        text = "new" if before is None else difference(before, found[name]) or "unchanged"
        print(f"{name}: {text}", flush=True)
    write(found)


if __name__ == "__main__":
    main(sys.argv[1:])
