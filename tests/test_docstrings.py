"""The examples in docstrings run, and every public name has one, there or on a page."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import flipout
import flipout_lab
from tests.docs_outputs import PAGES, code


def modules() -> Iterator[ModuleType]:
    """The modules with examples."""
    for package in (flipout, flipout_lab):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            source = Path(str(found.module_finder.path), f"{found.name.rpartition('.')[2]}.py")  # type: ignore[union-attr]
            if source.exists() and ">>>" in source.read_text():
                yield importlib.import_module(found.name)


EXAMPLES = [test for module in modules() for test in doctest.DocTestFinder(recurse=True).find(module) if test.examples]


def names() -> dict[str, Any]:
    """What an example may use: a model, its optimizer, data, and a function that trains."""
    torch.manual_seed(0)
    x, y = torch.randn(64, 12), torch.randint(4, (64,))
    loader = [(x[i : i + 16], y[i : i + 16]) for i in range(0, 64, 16)]
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_fn, epochs = nn.functional.cross_entropy, 3

    def train() -> None:
        for _ in range(epochs):
            for inputs, targets in loader:
                loss_fn(model(inputs), targets).backward()
                optimizer.step()
                optimizer.zero_grad()

    modules = {"flipout": flipout, "flipout_lab": flipout_lab, "torch": torch, "partial": partial}
    return {**locals(), **modules, "steps": 12, "example_input": x[:1]}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_prints_what_it_says(
    example: doctest.DocTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    example.globs = names()
    printed: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # most examples do not finish their training
        failed, _ = doctest.DocTestRunner().run(example, out=printed.append, clear_globs=False)
        for value in example.globs.values():
            if isinstance(value, flipout.Pruner):
                value.remove()
        example.globs.clear()
    assert not failed, "".join(printed)


RESULTS = {"AcceleratedModel", "AccelerationChoice", "Data", "EffectiveWeights", "ModelCard", "SemiStructuredReport"}
RESULTS |= {"PrunedLayer", "PruneReport", "Sensitivity"}
"""What functions return: their example is that of the function."""


def public() -> Iterator[str]:
    """The names of all public functions and classes that a user calls."""
    for package in (flipout, flipout.export, flipout_lab):
        for name in package.__all__:
            found = getattr(package, name)
            problem = isinstance(found, type) and issubclass(found, (Warning, Exception))
            if callable(found) and not problem and name not in RESULTS:
                yield name


def test_every_public_name_has_an_example() -> None:
    examples = [f"{test.name} {example.source}" for test in EXAMPLES for example in test.examples]
    examples += [block for page in PAGES for block in code(page)]
    used = set(re.findall(r"\w+", "\n".join(examples)))
    needs_a_gpu, made_by_make_settings = "to_semi_structured", "Settings"
    assert set(public()) - used == {needs_a_gpu, made_by_make_settings}
