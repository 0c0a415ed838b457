"""The beginning of a report: the first figure, and which method to use at which sparsity."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flipout_lab import make_settings
from flipout_lab.reports.lead import choice_table, lead_figure, trials_table
from flipout_lab.reports.records import Record


def runs(method: str, accuracies: list[float], part: str = "results", **settings: Any) -> list[Record]:
    made = []
    for seed, accuracy in enumerate(accuracies):
        chosen: dict[str, Any] = {"sparsity": 0.99, "model": "resnet10", "epochs": 15, **settings}
        given = make_settings("default", method=method, seed=seed, **chosen)
        key = "validation_accuracy" if given.validate_ else "test_accuracy"
        result: dict[str, Any] = {"test_accuracy": None, "validation_accuracy": None, "dead_layers": [], "seconds": 1.0}
        made.append(Record(given.folder_name(), given, (part,), {**result, key: accuracy / 100}))
    return made


def row(*given: Record) -> dict[str, str]:
    table = choice_table("", list(given))
    assert table is not None
    (found,) = table.rows
    return dict(zip(table.heading, found, strict=True))


@pytest.mark.parametrize(
    ("flipout", "use"),
    [
        ([74, 75.1, 76], "FlipOut"),
        ([64, 65.1, 66], "global magnitude"),
        ([69, 72, 72], "either: no significant difference"),
        ([74], "cannot be said: one seed"),
        ([74, 75.1], "cannot be said: two seeds"),
    ],
)
def test_a_method_is_recommended_if_the_interval_excludes_zero(flipout: list[float], use: str) -> None:
    found = row(*runs("magnitude", [70, 71, 72]), *runs("flipout", flipout))
    assert found["use"] == use
    assert found["seeds"] == str(len(flipout))


def test_accuracies_are_those_of_the_seeds_that_both_have() -> None:
    found = row(*runs("magnitude", [70, 71, 72, 12]), *runs("flipout", [74, 75.1, 76]))
    assert found["global magnitude"] == "71.00 ± 1.00"
    assert found["FlipOut"] == "75.03 ± 1.00"
    assert found["FlipOut minus magnitude"].startswith("+4.03 (")


def test_runs_that_are_planned_are_left_out() -> None:
    planned = [replace(run, result=None) for run in runs("flipout", [0, 0, 0])]
    assert choice_table("", [*runs("magnitude", [70, 71, 72]), *planned]) is None
    assert choice_table("", runs("magnitude", [70, 71, 72])) is None
    assert len(trials_table("", [*runs("magnitude", [70, 71, 72]), *planned]).rows) == 1


OTHERS = "highest mean of the others, minus FlipOut"


def test_another_method_that_is_ahead_is_named() -> None:
    both = [*runs("magnitude", [70, 71, 72]), *runs("flipout", [74, 75.1, 76])]
    assert row(*both, *runs("lamp", [80, 81.1, 82]))[OTHERS].startswith("LAMP: +6.00 (")
    assert OTHERS not in row(*both, *runs("lamp", [72, 73.1, 74]))
    failed = [replace(run, result=None, failure="diverged") for run in runs("lamp", [0], epochs=15)]
    lucky = [replace(run, settings=run.settings.model_copy(update={"seed": 9})) for run in failed]
    assert OTHERS not in row(*both, *runs("lamp", [80, 81.1, 82]), *lucky)


@pytest.mark.parametrize(
    ("revived", "use"),
    [
        ([80, 81.3, 82], "global magnitude with second chances"),
        ([70, 71.3, 72], "FlipOut"),
        ([73, 76.3, 76], "second chances, with either ranking"),
        ([], "FlipOut"),
    ],
)
def test_magnitude_with_second_chances_is_the_control(revived: list[float], use: str) -> None:
    both = [*runs("magnitude", [60, 61, 62]), *runs("flipout", [74, 75.1, 76])]
    assert row(*both, *runs("magnitude", revived, second_chances=True))["use"] == use


@pytest.mark.parametrize(
    ("early", "use"),
    [
        ([80, 81.3, 82], "global magnitude that ends at 20 %"),
        ([70, 71.3, 72], "FlipOut"),
        ([73, 76.3, 76], "FlipOut, or magnitude that ends at 20 %"),
    ],
)
def test_magnitude_that_ends_early_is_a_baseline_too(early: list[float], use: str) -> None:
    both = [*runs("magnitude", [60, 61, 62]), *runs("flipout", [74, 75.1, 76])]
    found = row(*both, *runs("magnitude", early, end=0.2))
    assert found["use"] == use
    assert found["FlipOut minus magnitude"].startswith("+14.03 (")


def test_a_dead_baseline_is_named() -> None:
    dead = [replace(run, result={**run.result, "dead_layers": ["fc"]}) for run in runs("magnitude", [10, 10, 10])]  # type: ignore[dict-item]
    found = row(*dead, *runs("flipout", [30, 30.1, 29]))
    assert found["use"] == "FlipOut (permanent magnitude: a dead layer in every run)"


def test_only_our_schedule_and_the_test_set_count() -> None:
    ours = [*runs("magnitude", [70, 71, 72]), *runs("flipout", [70, 71, 72])]
    paper = [*runs("magnitude", [50, 51, 52], schedule="paper"), *runs("flipout", [90, 91, 92], schedule="paper")]
    held_out = [*runs("magnitude", [10, 11], validate=True), *runs("flipout", [90, 91], validate=True)]
    smoke = [*runs("magnitude", [10], "smoke test", epochs=1), *runs("flipout", [90], "smoke test", epochs=1)]
    assert row(*ours, *paper, *held_out, *smoke)["use"] == "either: no significant difference"
    assert choice_table("", [*paper, *held_out, *smoke]) is None


def test_a_diverged_seed_is_not_recommended() -> None:
    (lost,) = runs("flipout", [0], epochs=15)
    settings = lost.settings.model_copy(update={"seed": 9})
    failed = Record("lost", settings, ("results",), None, "the loss is NaN")
    found = row(*runs("magnitude", [70, 71, 72]), *runs("flipout", [80, 81.1, 82]), failed)
    assert found["use"] == "global magnitude: 1 of FlipOut's seeds failed"


def test_the_first_figure_is_of_a_convolutional_network() -> None:
    small = runs("magnitude", [90, 91, 92, 93], model="lenet-300-100")
    assert lead_figure(small) is None
    found = lead_figure(small, convolutional=False)
    assert found is not None
    assert found.network == "LeNet-300-100 on MNIST, 15 epochs"
    dense, ablation = runs("dense", [80], sparsity=0.0), runs("flipout", [60], noise=1.0)
    large = [*runs("magnitude", [70]), *runs("flipout", [70]), *runs("magnitude", [60], schedule="paper")]
    large += runs("magnitude", [70], second_chances=True)  # the control
    found = lead_figure([*small, *large, *ablation, *dense, *runs("flipout", [1], epochs=1)])
    assert found is not None
    assert found.network == "ResNet10 on CIFAR-10, 15 epochs"
    assert {run.name for run in found.runs} == {run.name for run in (*large, *dense)}


def test_a_network_with_ablations_alone_has_no_figure() -> None:
    alone = runs("flipout", [60, 61], noise=1.0)
    assert lead_figure(alone) is None
    assert lead_figure([*alone, *runs("dense", [80], sparsity=0.0)]) is None


def test_every_trial_has_a_row() -> None:
    given = [*runs("magnitude", [70, 71, 72]), *runs("flipout", [74, 75.1, 76]), *runs("lamp", [60], sparsity=0.9)]
    lines = trials_table("", given).markdown().splitlines()
    assert lines[2] == "| Global magnitude | 99 % | 3 | 71.00 ± 1.00 |  |"
    assert lines[3].startswith("| FlipOut | 99 % | 3 | 75.03 ± 1.00 | **+4.03 (+3.89 to +4.18)** |")
    assert lines[4] == "| LAMP | 90 % | 1 | 60.00 |  |"
