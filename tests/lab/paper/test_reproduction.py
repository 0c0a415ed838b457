"""The tables and figures of the paper, reproduced."""

from __future__ import annotations

from pathlib import Path

import pytest

from flipout_lab.errors import LabError
from flipout_lab.paper.reproduction import check_item, grids_of, reproduce_item, schedule_table
from flipout_lab.reports import Records
from flipout_lab.tables import Bold


def test_tables_and_figures_are_reproduced(records: Records, tmp_path: Path) -> None:
    (table,), written = reproduce_item("table3", "quick", records, tmp_path)
    assert len(table.heading) == 11
    assert any(isinstance(entry, Bold) for entry in table.rows[0])
    assert all(path.exists() for path in written)
    (table,), _ = reproduce_item("table2", "quick", records, tmp_path)
    assert "λ = " in table.rows[0][1]
    tables, written = reproduce_item("figure-ablation", "quick", records, tmp_path)
    assert [row[0] for row in tables[0].rows][:2] == ["FlipOut (paper)", "FlipOut (paper), no noise"]
    assert {path.suffix for path in written} == {".png", ".pdf", ".md", ".csv", ".tex"}


def test_table_1_has_the_numbers_of_the_paper() -> None:
    column = [row[2] for row in schedule_table("paper").rows]
    assert column == ["117", "70", "50", "39", "32"]
    assert len(schedule_table("quick").rows) == 5


def test_names_are_checked() -> None:
    with pytest.raises(LabError, match="did you mean 'table2'"):
        check_item("tabel2", "quick")
    with pytest.raises(LabError, match="unknown scale"):
        check_item("table2", "large")
    paper = ["paper-densenet121", "paper-lenet-300-100", "paper-resnet18", "paper-vgg19"]
    assert grids_of("paper", "table2") == paper
    assert grids_of("quick", "") == ["quick"]
