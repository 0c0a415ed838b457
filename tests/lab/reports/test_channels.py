"""Whole channels beside dense networks of the same size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flipout_lab.cli import app
from flipout_lab.paper.results_page import render_results_page
from flipout_lab.reports import Records, collect
from flipout_lab.reports.channels import channels_table, networks_in_channels
from flipout_lab.reports.lead import choice_table
from flipout_lab.reports.records import Record
from flipout_lab.tables import Bold
from tests.lab.reports.test_lead import runs


def sized(method: str, accuracies: list[float], dense: int, nonzero: int, **settings: object) -> list[Record]:
    made = runs(method, accuracies, "channels", **settings)
    counts = {"multiply_adds": {"dense": dense, "nonzero": nonzero}}
    return [replace(run, result={**(run.result or {}), **counts}) for run in made]


CHANNELS = {"granularity": "channel", "target": "macs"}
RUNS = [
    *sized("dense", [80, 81, 82], 1000, 1000, sparsity=0.0),
    *sized("dense", [74, 75, 76], 490, 490, sparsity=0.0, width=0.7),
    *sized("dense", [70, 71, 72], 260, 260, sparsity=0.0, width=0.5),
    *sized("flipout", [77, 78.1, 79], 1000, 499, sparsity=0.5, **CHANNELS),
    *sized("flipout", [73, 73.9, 75], 1000, 480, sparsity=0.5, scope="layer", **CHANNELS),
    *sized("magnitude", [60, 61.1, 62], 1000, 249, sparsity=0.75, **CHANNELS),
]


def test_a_pruned_network_is_compared_with_the_dense_one_of_its_size() -> None:
    (found,) = networks_in_channels(RUNS).values()
    table = channels_table("", found)
    rows = {(row[0], row[1]): dict(zip(table.heading, row, strict=True)) for row in table.rows}
    assert [row[0] for row in table.rows] == ["all", "a half", "a half", "a half", "a quarter", "a quarter"]
    assert rows["all", "Dense, trained at this size"]["left"] == "100.0%"
    half = rows["a half", "FlipOut"]
    assert isinstance(half["minus a dense network of its size"], Bold)
    assert (half["left"], half["accuracy"]) == ("49.9%", "78.03 ± 1.00")
    assert half["minus a dense network of its size"].startswith("+3.03 (")
    assert rows["a half", "FlipOut, the same share of every layer"]["minus a dense network of its size"].startswith("-")
    assert rows["a quarter", "Global magnitude"]["minus a dense network of its size"].startswith("-9.97 (")


def test_it_is_a_section_of_the_results_page_and_no_recommendation_for_single_weights() -> None:
    page = render_results_page([Records("", tuple(RUNS))], "flipout claims")
    assert page.count("Dense, trained at this size") == 3
    assert choice_table("", RUNS) is None


def test_a_report_measures_the_time_of_a_call(tmp_path: Path) -> None:
    grid = tmp_path / "small.toml"
    grid.write_text(
        '[base]\nmodel = "mlp"\ndata = "digits"\nepochs = 1\n[[part]]\nname = "channels"\nmethod = "magnitude"\n'
        'granularity = "channel"\ntarget = "macs"\nsparsity = 0.5\n[[part]]\nname = "channels"\nmethod = "dense"\n'
        "sparsity = 0.0\nwidth = [1.0, 0.5]\n"
    )
    for command in (
        ["sweep", str(grid), "--out", str(tmp_path / "runs"), "--quiet"],
        ["report", str(tmp_path / "runs")],
    ):
        result = CliRunner().invoke(app, command, catch_exceptions=False)
        assert result.exit_code == 0, result.output
    stored = collect(tmp_path / "runs" / "report" / "results.json")
    times = [(run.result or {})["call_time"] for run in stored.runs]
    assert len(times) == 3
    assert all(time > 0 for time in times)


@pytest.mark.parametrize("given", [[], RUNS[:9]])
def test_without_pruned_runs_there_is_no_table(given: list[Record]) -> None:
    assert networks_in_channels(given) == {}
