"""The page that puts the cited methods beside their papers: only what all seeds have finished."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flipout_lab.paper.cited_methods import BUDGET, render_cited_methods
from flipout_lab.reports import Records
from flipout_lab.reports.records import Record
from flipout_lab.runs.settings import make_settings

LAYERS = {
    "l0": {"a": (235_200, 65_700), "b": (30_000, 21_400), "c": (1_000, 1_000)},
    "variational-dropout": {"a": (235_200, 2_352), "b": (30_000, 900), "c": (1_000, 400)},
}


def run(method: str, seed: int, sparsity: Any = "none", part: str = "their papers", **settings: Any) -> Record:
    given = make_settings(method=method, seed=seed, sparsity=sparsity, model="lenet-300-100", data="mnist", **settings)
    layers = {name: {"weights": n, "kept": k} for name, (n, k) in LAYERS.get(method, {}).items()}
    kept = sum(layer["kept"] for layer in layers.values())
    result = {"sparsity": 1 - kept / 266_200, "test_accuracy": 0.98 + seed / 1000, "dead_layers": [], "layers": layers}
    return Record(given.folder_name(), given, (part,), result)


def page(runs: list[Record]) -> str:
    return render_cited_methods(Records("cited", tuple(runs)), "flipout cited x")


def test_ours_stand_below_theirs() -> None:
    text = page([run("l0", seed, gates="unit") for seed in range(3)])
    text += page([run("variational-dropout", seed, epochs=40) for seed in range(3)])
    assert "| L0 | Louizos et al. (2018) | 200 | 1.4 | 33.10 | 219-214-100 inputs |" in text
    assert "|  | here, 3 seeds | 30 | 1.90 ± 0.10 | 33.10 ± 0.00 | 219-214-100 inputs |" in text
    assert "| Variational dropout | Molchanov et al. (2017) | 200 | 1.92 | 1.47 |" in text
    assert "1.0, 3.0, 40.0 % of the layers |" in text


def test_what_is_not_finished_is_left_out() -> None:
    runs = [run("l0", seed) for seed in range(2)]
    runs += [run("magnitude", seed, 0.99, BUDGET) for seed in range(3)]
    text = page([*runs, replace(run("obs", 0, 0.99, BUDGET), result=None)])
    assert text.count("Not finished yet.") == 2
    text = page([*runs, run("magnitude", 0, 0.9, BUDGET)])
    assert "| method | 90 % | 99 % |" in text
