"""Grids: from a file to its runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flipout_lab.errors import LabError
from flipout_lab.sweeps import read_grid, shipped_grids
from flipout_lab.sweeps.grid import Grid, parse_grid

SPARSITIES = [1 - 2.0**-m for m in (2, 4, 6, 8, 10)]


def grid(*parts: dict[str, Any], **base: Any) -> Grid:
    return parse_grid("test", {"base": base, "part": list(parts)})


def test_every_combination_once() -> None:
    runs = grid({"method": ["flipout", "magnitude"], "sparsity": [0.5, 0.9], "seed": [0, 1, 2]}, epochs=3).runs()
    found = {(run.settings.method, run.settings.sparsity, run.settings.seed) for run in runs}
    assert found == {(m, s, i) for m in ("flipout", "magnitude") for s in (0.5, 0.9) for i in range(3)}
    assert len(runs) == 12
    assert all(run.settings.epochs == 3 for run in runs)


def test_variants_are_combined_with_the_axes() -> None:
    variants = [{"method": "flipout", "noise": 0.0}, {"method": "snip", "rounds": 3}]
    runs = grid({"variants": variants, "seed": [0, 1]}).runs()
    found = [
        (r.settings.method, r.settings.option("noise"), r.settings.option("rounds"), r.settings.seed) for r in runs
    ]
    assert found == [("flipout", 0.0, None, 0), ("flipout", 0.0, None, 1), ("snip", None, 3, 0), ("snip", None, 3, 1)]


def test_a_run_of_two_parts_is_run_once() -> None:
    runs = grid(
        {"name": "results", "method": ["flipout", "random"]},
        {"name": "ablation", "method": ["flipout", "magnitude"]},
    ).runs()
    assert [(run.settings.method, run.parts) for run in runs] == [
        ("flipout", ("results", "ablation")),
        ("random", ("results",)),
        ("magnitude", ("ablation",)),
    ]


def test_parts_with_the_same_name_are_one_part() -> None:
    both = grid({"name": "a", "method": "flipout"}, {"name": "a", "method": "dense"}, {"name": "b", "method": "random"})
    assert [run.settings.method for run in both.only(["a"]).runs()] == ["flipout", "dense"]


def test_a_table_with_several_names_is_in_several_parts() -> None:
    both = grid({"name": ["a", "b"], "method": "flipout"}, {"name": "b", "method": ["random", "dense"]})
    assert both.parts == ["a", "b"]
    assert [run.parts for run in both.runs()] == [("a", "b"), ("b",), ("b",)]
    assert [run.settings.method for run in both.only(["a"]).runs()] == ["flipout"]
    assert [run.parts for run in both.only(["b"]).runs()] == [("b",)] * 3


def test_runs_are_in_the_order_of_the_file() -> None:
    first = {"name": "a", "method": "flipout", "sparsity": [0.9, 0.5], "seed": [0, 1]}
    runs = grid(first, {"name": "b", "method": "dense"}, {"name": "a", "method": "random"}).runs()
    found = [(run.settings.method, run.settings.sparsity, run.settings.seed) for run in runs]
    assert found[:4] == [("flipout", 0.9, 0), ("flipout", 0.9, 1), ("flipout", 0.5, 0), ("flipout", 0.5, 1)]
    assert [method for method, _, _ in found[4:]] == ["dense", "random"]


def test_settings_that_are_lists_are_not_axes() -> None:
    (one,) = grid({"milestones": [100, 200]}).runs()
    assert one.settings.milestones == (100, 200)
    two = grid({"milestones": [[100], [200, 300]]}).runs()
    assert [run.settings.milestones for run in two] == [(100,), (200, 300)]


def test_none_is_written_as_text() -> None:
    (run,) = grid({"method": "hoyer-square", "sparsity": "none"}).runs()
    assert run.settings.sparsity is None
    (run,) = grid({"variants": [{"method": "hoyer-square", "sparsity": "none"}]}).runs()
    assert run.settings.sparsity is None
    (run,) = grid({"method": "hoyer-square"}, sparsity="none").runs()
    assert run.settings.sparsity is None


def test_a_setting_for_every_run_overrides_the_grid() -> None:
    changed = grid({"seed": [0, 1], "sparsity": [0.5, 0.9]}, epochs=3).with_settings(seed="7", epochs=5)
    assert [(run.settings.epochs, run.settings.seed) for run in changed.runs()] == [(5, 7)] * 2
    with pytest.raises(LabError, match="did you mean 'epochs'"):
        changed.with_settings(epoch=3).runs()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"part": [{"sparsty": [0.5]}]}, "did you mean 'sparsity'"),
        ({"base": {"metod": "snip"}, "part": [{}]}, "did you mean 'method'"),
        ({"parts": []}, "did you mean 'part'"),
        ({"base": {}}, "has no \\[\\[part\\]\\]"),
        ({"part": [{"seed": []}]}, "empty list for seed"),
        ({"part": [{"variants": [1]}]}, "needs variants"),
        ({"part": [{"variants": [{"nois": 1}]}]}, "did you mean 'noise'"),
        ({"part": {"seed": 1}}, "needs a table"),
        ({"part": [{"name": []}]}, "table 1 of the grid test has an empty list of names"),
    ],
)
def test_errors_in_a_file_are_named(content: dict[str, Any], words: str) -> None:
    with pytest.raises(LabError, match=words):
        parse_grid("test", content).runs()


def test_an_invalid_run_is_reported_with_its_part() -> None:
    with pytest.raises(LabError, match=r"part 'x' of the grid test .*snip takes no --p"):
        grid({"name": "x", "method": ["flipout", "snip"], "p": 2.0}).runs()


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[base]\nrecipe = "paper"\nepochs = 7\n[[part]]\nseed = [0, 1]\n')
    runs = read_grid(path).runs()
    assert [run.settings.seed for run in runs] == [0, 1]
    assert runs[0].settings.option("schedule") == "paper"
    path.write_text("[base")
    with pytest.raises(LabError, match="mine is not valid TOML"):
        read_grid(path)
    with pytest.raises(LabError, match="did you mean 'quick'"):
        read_grid("quik")


@pytest.mark.parametrize("name", shipped_grids())
def test_shipped_grids_are_valid(name: str) -> None:
    shipped = read_grid(name)
    expected = {
        "small-resnet10": {"second chances"},
        "larger": {"second chances"},
        "demo": {"results"},
        "cited": {"their papers"},
        "second": {"second chances"},
        "smoke": {"smoke test"},
        "units": {"results"},
        "equal": {"equal time"},
        "channels": {"channels"},
        "one": {"one shot"},
    }
    kind = name if name in expected else name.partition("-")[0]
    assert expected.get(kind, {"results", "ablation", "schedules"}) <= set(shipped.parts)
    assert len(shipped.runs()) == len({run.name for run in shipped.runs()})


@pytest.mark.parametrize("network", ["resnet18", "vgg19", "densenet121"])
def test_the_papers_grids(network: str) -> None:
    """The settings of Section 4 of the paper, for each figure and table."""
    paper = read_grid(f"paper-{network}")
    runs = [run.settings for run in paper.runs()]
    assert {(r.model, r.epochs, r.batch_size, r.learning_rate, r.momentum, r.weight_decay) for r in runs} == {
        (network, 350, 128, 0.1, 0.9, 5e-4)
    }
    assert {r.milestones for r in runs} == {(150, 250)}

    def of(part: str) -> list[Any]:
        return [run.settings for run in paper.only([part]).runs()]

    for method in ("flipout-paper", "magnitude", "random", "snip"):
        found = {(r.sparsity, r.seed) for r in of("results") if r.method == method}
        assert found == {(sparsity, seed) for sparsity in SPARSITIES for seed in range(3)}
        scheduled = {r.option("schedule") for r in of("results") if r.method == method}
        assert scheduled == ({None} if method == "snip" else {"paper"})
    hoyer = {r.option("lambda") for r in of("results") if r.method == "hoyer-square"}
    assert sorted(hoyer) == pytest.approx([d * 10.0**e for e in range(-7, -2) for d in (1, 3, 6)])
    assert {(r.method, r.option("noise")) for r in of("ablation")} == {
        ("flipout-paper", 1.0),
        ("flipout-paper", 0.0),
        ("magnitude", None),
        ("magnitude", 1.0),
    }
    assert all(r.validate_ for part in ("table2", "table3") for r in of(part))
    lambdas = sorted({r.option("noise") for r in of("table2")})
    assert lambdas == pytest.approx([0.75 + 0.05 * i for i in range(16)])
    assert {r.option("p") for r in of("table3")} == {0.0, 0.5, 1.0, 2.0, 4.0}
    for part in ("table2", "table3"):
        assert {r.sparsity for r in of(part)} == {0.9375, 0.9990234375}


def test_the_long_grids_answer_the_main_questions_first() -> None:
    paper = [run.settings for run in read_grid("paper-lenet-300-100").runs()]
    assert {run.epochs for run in paper} == {350}
    assert {(r.method, r.sparsity, r.seed) for r in paper[:12]} == {
        (method, sparsity, seed)
        for method in ("flipout-paper", "magnitude")
        for sparsity in (0.9990234375, 0.99609375)
        for seed in (0, 1, 2)
    }
    small = [run.settings for run in read_grid("small-resnet10").runs()]
    assert {run.method for run in small[:15]} == {"flipout", "magnitude"}
    assert {(run.sparsity, run.seed) for run in small[:15]} == {(0.99609375, seed) for seed in range(5)}
