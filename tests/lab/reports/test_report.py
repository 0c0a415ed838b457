"""The report: its page, figures and tables, and the page in a browser."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flipout_lab import make_settings
from flipout_lab.errors import LabError
from flipout_lab.reports import Record, Records, collect, write_report
from flipout_lab.reports.charts import (
    accuracy_chart,
    flip_histogram,
    learning_chart,
    pruning_history,
    seconds_chart,
    training_chart,
)
from flipout_lab.reports.labels import by_network
from flipout_lab.reports.records import locate_runs, read_records, results_json, versions_of
from flipout_lab.reports.report_tables import accuracy_table, dead_table, shots_table
from flipout_lab.reports.report_writer import UniqueNames
from flipout_lab.reports.seed_statistics import cells
from flipout_lab.tables import Bold, Table
from tests.lab.reports.test_lead import runs

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def report(records: Records, swept: Path) -> Path:
    return write_report(records, swept / "report")


def test_everything_is_written(report: Path) -> None:
    folder = report.parent
    names = {path.name for path in (folder / "figures").iterdir()}
    for figure in ("results", "ablation", "learning", "seconds", "layers", "flips", "pruning-history"):
        for suffix in ("png", "pdf"):
            assert f"mlp-on-digits-0-25-of-its-channels-3-epochs-learning-rate-0-1-{figure}.{suffix}" in names
    for suffix in ("md", "csv", "tex"):
        assert (
            folder / "tables" / f"mlp-on-digits-0-25-of-its-channels-3-epochs-learning-rate-0-1-results.{suffix}"
        ).exists()
    text = report.read_text()
    assert "A &lt;small&gt; test, &amp; not run" in text
    assert "<small>" not in text.split("<body>")[1].split("<script")[0]
    for word in ("missing", "1 failed", "interpolated", "Dead layers", "torch 2"):
        assert word in text


def test_the_page_leads_with_what_a_reader_wants(report: Path, records: Records, tmp_path: Path) -> None:
    body = report.read_text().rpartition("</head>")[2]
    assert re.findall("<h2>(.*?)</h2>", body)[0] == "In short"
    assert body.index("<h3>Accuracy against sparsity</h3>") < body.index('<section id="mlp-on-digits')
    assert (report.parent / "figures" / "in-short-accuracy.png").exists()
    claims = Table("What was claimed", ("claim", "verdict"), [["a < b", "holds"]])
    text = write_report(records, tmp_path, claims=claims).read_text().rpartition("</head>")[2]
    assert "<th scope=row>a &lt; b</th>" in text.partition("</section>")[0]
    nothing = Records("nothing", tuple(replace(run, result=None, failure="", metrics=()) for run in records.runs))
    assert "In short" not in write_report(nothing, tmp_path / "nothing").read_text().rpartition("</head>")[2]


def test_the_page_needs_nothing_else(report: Path) -> None:
    head = report.read_text().split("<script>")[0]
    assert "http://" not in head
    assert "https://" not in head
    body = report.read_text().rpartition("</head>")[2]
    assert "src=" not in body
    assert 'href="http' not in body


def test_runs_link_to_their_settings(report: Path, records: Records) -> None:
    text = report.read_text()
    for run in records.runs:
        if run.result is not None:
            assert f'href="../{run.name}/config.json"' in text
            assert (report.parent / f"../{run.name}/config.json").exists()


def test_the_results_come_back(report: Path, records: Records) -> None:
    """The results.json of a report is enough to write its tables again."""
    again = read_records(report.parent / "results.json")
    assert again.title == records.title
    assert [run.settings for run in again.runs] == [run.settings for run in records.runs]
    for part in records.parts:
        assert cells(again.in_part(part)) == cells(records.in_part(part))
    befores = [run.before_fine_tuning for run in records.runs]
    assert any(before is not None for before in befores)
    assert [run.before_fine_tuning for run in again.runs] == befores
    write_report(again, report.parent / "again")
    assert (report.parent / "again" / "index.html").exists()


def test_curves_have_the_points_of_the_data(records: Records) -> None:
    for curve in accuracy_chart(records.in_part("results")).curves:
        row = {1 - s: cell for s, cell in cells(records.in_part("results"))[curve.label].items() if cell.values}
        assert dict(zip(curve.x, curve.y, strict=True)) == {x: cell.mean for x, cell in row.items()}
    for curve in learning_chart(records.in_part("results"), 0.9375).curves:
        assert curve.x == (1, 2, 3)
        assert curve.seeds == (2, 2, 2)
    mine = next(c for c in learning_chart(records.in_part("results"), 0.9375).curves if c.label == "FlipOut (paper)")
    assert len(mine.prunings) == 4
    assert all(0 < epoch <= 3 for epoch in mine.prunings)


def test_seconds_of_epochs_are_shown_beside_those_of_the_dense_network(records: Records) -> None:
    runs = records.in_part("results")
    curves = seconds_chart(runs, 0.9375).curves
    assert {"FlipOut (paper)", "Dense"} <= {curve.label for curve in curves}
    run = next(run for run in runs if run.settings.method == "dense" and run.metrics)
    assert sum(line["epoch_seconds"] for line in run.metrics) == pytest.approx(run.metrics[-1]["seconds"], abs=0.01)
    assert all(len(curve.y) == 3 and min(curve.y) >= 0 for curve in curves)


def test_seconds_of_training_are_shown_against_sparsity(records: Records) -> None:
    runs = records.in_part("results")
    chart = training_chart(runs)
    dense = [run.result["seconds"] for run in runs if run.result is not None and not run.is_pruned]
    assert chart.reference == pytest.approx(sum(dense) / len(dense))
    magnitude = next(curve for curve in chart.curves if curve.label == "Global magnitude")
    assert magnitude.x == tuple(sorted(magnitude.x, reverse=True))
    assert min(magnitude.y) > 0
    assert "Dense" not in {curve.label for curve in chart.curves}


def test_flips_count_every_weight(records: Records) -> None:
    run = next(run for run in records.runs if run.settings.method == "flipout-paper" and run.result is not None)
    assert run.result is not None
    found = flip_histogram(run)
    assert found is not None
    pruned, kept = found.curves
    assert (pruned.label, kept.label) == ("pruned", "kept")
    assert sum(kept.y) == run.result["nonzero"]
    assert sum(kept.y) + sum(pruned.y) == run.result["prunable"]
    assert kept.x[:3] == pruned.x[:3] == ("0", "1 to 2", "3 to 6")
    history = pruning_history(run)
    assert history is not None
    assert {curve.label for curve in history.curves} == set(run.result["layers"])
    for curve in history.curves:
        layer = run.result["layers"][curve.label]
        assert curve.y[0] == 100
        assert curve.y[-1] == pytest.approx(100 * layer["kept"] / layer["weights"])
    others = next(run for run in records.runs if run.settings.method == "magnitude" and run.result is not None)
    assert flip_histogram(others) is None


def test_tables_in_every_format() -> None:
    rows = (("a & b", Bold("1.0 ± 0.1")), ("c|d", "90 % †"))
    table = Table("Of_things", ("method", "99 %"), rows, ("A note.",))
    assert "| a & b | **1.0 ± 0.1** |" in table.markdown()
    assert "c\\|d" in table.markdown()
    assert list(csv.reader(table.csv().splitlines()))[1] == ["a & b", "1.0 ± 0.1"]
    assert r"a \& b & \textbf{1.0 $\pm$ 0.1} \\" in table.latex()
    assert r"90 \% $^\dagger$" in table.latex()
    assert r"Of\_things" in table.latex()
    assert "<b>1.0 ± 0.1</b>" in table.html()
    assert "a &amp; b" in table.html()


def test_dead_layers_are_listed(records: Records) -> None:
    table = dead_table("", records.in_part("results"))
    assert table is not None
    dead = {row[0]: row for row in table.rows}
    assert "of 2: " in dead["SNIP"][-1]
    assert dead_table("", records.in_part("ablation")) is None


def test_the_dense_reference_and_missing_cells(records: Records) -> None:
    table = accuracy_table("", records.in_part("results"))
    assert table.rows[-1][0] == "Dense (not pruned)"
    snip = next(row for row in table.rows if row[0] == "SNIP")
    assert [entry == "missing" for entry in snip[1:]] == [False, True, False]


def test_shots_are_counted(records: Records) -> None:
    table = shots_table("", records.in_part("aim"))
    assert table is not None
    quiet, noisy = (float(row[1].split()[0]) for row in table.rows)
    assert 0 < quiet < noisy < 100


def test_folders_without_runs(tmp_path: Path, swept: Path) -> None:
    with pytest.raises(LabError, match="contains no runs"):
        collect(tmp_path)
    with pytest.raises(LabError, match="does not exist"):
        locate_runs(str(tmp_path / "x"))
    one = next(path.parent for path in swept.glob("*/model.safetensors"))
    with pytest.raises(LabError, match="is a single run"):
        locate_runs(str(one))


def test_damaged_files_are_named(tmp_path: Path, swept: Path) -> None:
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(LabError, match=r"sweep\.json .*threads"):
        collect(tmp_path)
    (tmp_path / "other.json").write_text('{"a": 1}')
    with pytest.raises(LabError, match=r"not the results\.json of a report"):
        collect(tmp_path / "other.json")
    one = next(path.parent for path in swept.glob("*/model.safetensors"))
    shutil.copytree(one, tmp_path / "runs" / one.name)
    (tmp_path / "runs" / one.name / "metrics.jsonl").write_text('{"epoch": 1')
    with pytest.raises(LabError, match="damaged"):
        collect(tmp_path / "runs")


def test_results_of_data_that_is_not_available(tmp_path: Path, swept: Path) -> None:
    one = next(path.parent for path in swept.glob("*magnitude*/model.safetensors"))
    shutil.copytree(one, tmp_path / one.name)
    config = json.loads((tmp_path / one.name / "config.json").read_text())
    config["settings"]["data"] = "/not/$here"
    (tmp_path / one.name / "config.json").write_text(json.dumps(config))
    write_report(collect(tmp_path), tmp_path / "report")
    assert "on /not/$here" in (tmp_path / "report" / "index.html").read_text()


def test_titles_name_the_settings_that_differ() -> None:
    def made(**settings: Any) -> Record:
        chosen = make_settings(model="mlp", **settings)
        return Record(chosen.folder_name(), chosen, ("runs",))

    runs = [made(learning_rate=0.1), made(learning_rate=0.2), made(epochs=3)]
    assert list(by_network(runs)) == [
        "MLP on digits, 30 epochs, learning rate 0.1",
        "MLP on digits, 30 epochs, learning rate 0.2",
        "MLP on digits, 3 epochs",
    ]


def test_old_results_keep_the_defaults_of_their_time(report: Path, tmp_path: Path) -> None:
    content = json.loads((report.parent / "results.json").read_text())
    content["defaults"]["flipout-paper"] |= {"p": 3.0, "horizon": 50, "an old name": 1}
    (tmp_path / "old.json").write_text(json.dumps(content))
    runs = [run.settings for run in read_records(tmp_path / "old.json").runs if run.settings.method == "flipout-paper"]
    assert {run.option("horizon") for run in runs} == {50}
    assert {run.option("p") for run in runs if not run.validate_} == {3.0}
    assert not any("an old name" in run.given_options for run in runs)
    del content["defaults"]
    (tmp_path / "older.json").write_text(json.dumps(content))
    assert all("horizon" not in run.settings.given_options for run in read_records(tmp_path / "older.json").runs)


def test_runs_without_a_sweep_are_reported_too(swept: Path, tmp_path: Path) -> None:
    for path in swept.glob("*magnitude*"):
        shutil.copytree(path, tmp_path / path.name)
    assert collect(tmp_path).parts == ["runs"]
    write_report(collect(tmp_path), tmp_path / "report")


def test_one_grid_of_several(swept: Path) -> None:
    assert collect(swept, "never").title == "& not run"
    assert [run.parts for run in collect(swept, "never").runs] == [("never",)] * 2
    assert "never" not in collect(swept, "test").parts
    with pytest.raises(LabError, match="did you mean 'never'"):
        collect(swept, "nevr")


def test_runs_from_a_url(swept: Path, tmp_path: Path) -> None:
    location = locate_runs(f"file://{swept}", tmp_path)
    assert collect(location.runs).title == collect(swept).title
    assert location.report == tmp_path
    assert location.links == f"file://{swept}"
    assert not list(location.runs.glob("*/model.safetensors"))


def test_parts_with_the_same_slug_do_not_overwrite_each_other(swept: Path, tmp_path: Path) -> None:
    """The parts "+noise" and "-noise" have the same slug; "learning" is also the name of a figure of every report."""
    runs = [run for run in collect(swept).runs if run.result is not None and run.settings.method == "magnitude"]
    parts = [replace(run, parts=(part,)) for run, part in zip(runs, ("+noise", "-noise", "learning"), strict=False)]
    page = write_report(Records("test", tuple(parts)), tmp_path)
    start = "mlp-on-digits-0-25-of-its-channels-3-epochs"
    for run, name in zip(parts, ("noise", "noise-2", "learning"), strict=True):
        assert run.accuracy is not None
        assert f"{100 * run.accuracy:.2f}" in (tmp_path / "tables" / f"{start}-{name}.csv").read_text()
        assert (tmp_path / "figures" / f"{start}-{name}.png").exists()
    assert (tmp_path / "figures" / f"{start}-learning-2.png").exists()
    ids = re.findall(r'<(?:div|section) id="([^"]+)"', page.read_text())
    assert len(ids) == len(set(ids)) >= 7


def test_unique_names() -> None:
    names = UniqueNames()
    wanted = ["A b", "a+B", "a b 2", "a-b", "+", "*"]
    assert [names.reserve(title) for title in wanted] == ["a-b", "a-b-2", "a-b-2-2", "a-b-3", "unnamed", "unnamed-2"]


def test_markup_in_names_is_not_interpreted() -> None:
    rows = (("[bold]method", "1 :smile:"),)
    console = Console(file=io.StringIO(), width=100)
    console.print(Table("title [/b]", ("heading [/i]", "99 %"), rows, ("note [red]",)).rich())
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for text in ("title [/b]", "heading [/i]", "[bold]method", "1 :smile:", "note [red]"):
        assert text in shown


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium here")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(params=[(1200, 900), (390, 800)], ids=["wide", "phone"])
def page(browser: Any, report: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    width, height = request.param
    opened = browser.new_page(viewport={"width": width, "height": height})
    opened.page_errors = []
    opened.on("console", lambda message: opened.page_errors.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: opened.page_errors.append(str(error)))
    opened.on(
        "request",
        lambda sent: None if sent.url.startswith(("file:", "data:", "blob:")) else opened.page_errors.append(sent.url),
    )
    opened.goto(report.as_uri())
    opened.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length > 0")
    yield opened
    opened.close()


CHART = "mlp-on-digits-0-25-of-its-channels-3-epochs-learning-rate-0-1-results"


def test_the_charts_show_the_data(page: Any, records: Records) -> None:
    drawn = page.evaluate(
        "id => document.getElementById(id).data.map(t => [t.name, Array.from(t.x), Array.from(t.y)])", CHART
    )
    shown = {name: (x, y) for name, x, y in drawn}
    for curve in accuracy_chart(records.in_part("results")).curves:
        assert shown[curve.label] == (list(curve.x), pytest.approx(list(curve.y)))
    assert "Dense" in shown
    assert page.locator(".js-plotly-plot").count() == page.locator(".chart").count()
    assert not page.page_errors


def test_a_method_can_be_toggled(page: Any) -> None:
    page.locator(f"[id='{CHART}'] .legendtoggle").first.click()
    page.wait_for_function("id => document.getElementById(id).data[0].visible === 'legendonly'", arg=CHART)
    assert (
        page.evaluate("id => document.getElementById(id).data.filter(t => t.visible === 'legendonly').length", CHART)
        == 1
    )
    assert not page.page_errors


def test_a_sparsity_can_be_chosen(page: Any) -> None:
    name = CHART.replace("results", "learning")
    seen = "id => document.getElementById(id).data.map(t => t.visible)"
    before = page.evaluate(seen, name)
    page.locator(f"[id='{name}'] .updatemenu-header").first.click()
    page.locator(f"[id='{name}'] .updatemenu-dropdown-button").first.click()
    page.wait_for_function(
        f"([id, before]) => JSON.stringify(({seen})(id)) !== before",
        arg=[name, json.dumps(before, separators=(",", ":"))],
    )
    assert not page.page_errors


def test_nothing_is_cut_off(page: Any) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    if page.viewport_size["width"] < 700:
        assert page.evaluate("[...document.querySelectorAll('.wide')].every(e => e.scrollWidth <= e.clientWidth)")


def test_no_menu_covers_a_legend(page: Any) -> None:
    overlaps = """[...document.querySelectorAll('.js-plotly-plot')].filter(plot => {
        const menu = plot.querySelector('.updatemenu-header'), legend = plot.querySelector('.legend');
        if (!menu || !legend) return false;
        const [a, b] = [menu.getBoundingClientRect(), legend.getBoundingClientRect()];
        return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
    }).length"""
    assert page.evaluate(overlaps) == 0


def test_versions_are_listed_once_however_often_results_are_stored(tmp_path: Path) -> None:
    records = Records("", tuple(replace(run, versions={"flipout": "0.3.0"}) for run in runs("dense", [80, 81])))
    older = replace(records.runs[0], versions={"flipout": "0.2.0"})
    for _ in range(3):
        (tmp_path / "results.json").write_text(results_json(Records("", (older, *records.runs[1:]))))
        records = read_records(tmp_path / "results.json")
    assert versions_of([*records.runs, older]) == "flipout 0.2.0 and 0.3.0"
