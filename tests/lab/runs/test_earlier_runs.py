"""Runs that were started by version 0.1, whose config.json has all options of all methods, most of them null."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flipout_lab import LabError, data, load_run, make_settings, train
from flipout_lab.runs.run_views import run_tables
from flipout_lab.runs.training import StoppedError
from tests.lab.runs.test_training import StopAt

CONFIG = json.loads((Path(__file__).parent / "config-0.1.json").read_text())


def chosen(**options: Any) -> Any:
    return make_settings(method="flipout-paper", epochs=4, sparsity=0.9, **options)


def test_a_run_of_version_0_1_is_resumed_and_shown(tmp_path: Path) -> None:
    train(chosen(), tmp_path / "whole")
    with pytest.raises(StoppedError):
        train(chosen(), tmp_path / "parts", view=StopAt(29))
    threads = json.loads((tmp_path / "parts" / "config.json").read_text())["versions"]["threads"]
    config = {**CONFIG, "versions": {**CONFIG["versions"], "threads": threads}}
    (tmp_path / "parts" / "config.json").write_text(json.dumps(config))
    train(chosen(noise=1.0), tmp_path / "parts")
    assert (tmp_path / "whole/model.safetensors").read_bytes() == (tmp_path / "parts/model.safetensors").read_bytes()
    # A finished run keeps the config.json that it was finished with, or the one of version 0.1.
    (tmp_path / "parts" / "config.json").write_text(json.dumps(config))
    assert train(chosen(), tmp_path / "parts")["method"] == "flipout-paper"
    assert len(list(run_tables(tmp_path / "parts"))) == 5
    assert not load_run(tmp_path / "parts").training


def test_other_settings_than_those_of_version_0_1_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(LabError, match=r"other settings[\s\S]*noise: 1\.0 there, 0\.5 here$"):
        train(chosen(noise=0.5), tmp_path)
    later = {**CONFIG, "settings": {**CONFIG["settings"], "from_the_future": 3}}
    (tmp_path / "config.json").write_text(json.dumps(later))
    with pytest.raises(LabError, match="from_the_future: 3 there, not a setting here"):
        train(chosen(), tmp_path)


def test_a_network_is_loaded_without_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(make_settings(epochs=1), tmp_path)

    def not_available(*_: Any) -> None:
        raise AssertionError("the data set was read")

    monkeypatch.setattr(data, "load", not_available)
    config = json.loads((tmp_path / "config.json").read_text())
    config["settings"]["data"] = "/not/here"
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert not load_run(tmp_path).training
    del config["network"]  # as in version 0.1
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(AssertionError, match="was read"):
        load_run(tmp_path)
