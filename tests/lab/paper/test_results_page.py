"""The results page: the most important first, and no error if something was not run yet."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from flipout_lab.paper.results_page import render_results_page
from flipout_lab.reports import Records
from tests.lab.reports.test_lead import runs

PAGE = Path(__file__).parents[3] / "docs" / "results.md"


def test_the_page_leads_with_what_a_reader_wants(tmp_path: Path) -> None:
    ours = [*runs("magnitude", [70, 71, 72], "second chances"), *runs("flipout", [74, 75.1, 76], "second chances")]
    dense = runs("dense", [80, 81], sparsity=0.0)
    text = render_results_page([Records("one", tuple(ours)), Records("two", (*dense, *ours[:1]))], "x", tmp_path)
    assert re.findall("^## (.*)", text, re.MULTILINE) == [
        "In short",
        "Accuracy against sparsity on a convolutional network",
        "Which method at which sparsity",
        "The claims of the paper",
        "Second chances: what was tried",
        "The claims in detail",
        "ResNet10 on CIFAR-10, 15 epochs",
        "The runs behind this page",
    ]
    assert "ResNet10 on CIFAR-10, 15 epochs, 3 seeds. The dense network has 80.50 ± 0.71 (2 seeds)." in text
    assert "| **FlipOut** |" in text
    assert "| FlipOut | 99 % | 3 | 75.03 ± 1.00 | **+4.03 (+3.89 to +4.18)** |" in text
    pictures = re.findall(r"\]\((.*\.png)\)", text)
    assert {tmp_path.parent / picture for picture in pictures} == set(tmp_path.iterdir())


def test_what_is_not_finished_is_counted_and_left_out() -> None:
    """A long grid is published while it runs: parts and methods without a result are not shown."""
    done = runs("magnitude", [70, 71, 72])
    later = [replace(run, result=None) for run in (*runs("flipout", [0, 0]), *runs("random", [0], part="ablation"))]
    text = render_results_page([Records("one", (*done, *later))], "x")
    assert "2 of 5 runs are not finished. Methods and sparsities without a result are left out." in text
    assert "| Random |" not in text
    assert "### Ablation of the noise" not in text
    assert "| FlipOut |" not in text.partition("### Accuracy against sparsity")[2]
    assert "not finished" not in render_results_page([Records("one", tuple(done))], "x")


def test_a_page_without_results() -> None:
    text = render_results_page([Records("nothing", ())], "x")
    assert text.count("Not run yet.") > 4
    assert "Not run yet: `flipout sweep small-resnet10`." in text
    assert "| nothing | 0 | 0 | 0 | 0 | 0.0 |" in text


def test_every_picture_of_the_page_is_there_and_no_other() -> None:
    shown = set(re.findall(r"\]\(results/(.*\.png)\)", PAGE.read_text(encoding="utf-8")))
    assert shown == {path.name for path in (PAGE.parent / "results").glob("*.png")}
