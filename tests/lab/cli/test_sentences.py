"""Nonsense gets a sentence that names the fix, never a traceback, in `train` and in `plan`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.cli.typed import flipout

LONG = "x" * 300
REFUSED = [
    ("--seed 99999999999999999999", "--seed is '99999999999999999999': input should be less than or equal to"),
    ("--learning-rate inf", "--learning-rate is 'inf': input should be a finite number"),
    ("--learning-rate 1e300", "--learning-rate is '1e300': input should be less than or equal to 1000"),
    ("--width inf", "--width is 'inf': input should be a finite number"),
    ("--width 1e9", "--width is '1e9': input should be less than or equal to 1000"),
    ("--method lottery --rewind-to inf", "--rewind-to is 'inf': give a finite number of at most 1e+30"),
    ("--method lottery --rewind-to 1e29", "give a step before the first pruning"),
    ("--method hoyer-square --fine-tune inf", "--fine-tune is 'inf': input should be less than or equal to 1000"),
    ("--method hoyer-square --fine-tune 1e300", "--fine-tune is '1e300': input should be less than or equal to 1000"),
    ("--threads 100000", "--threads is '100000': input should be less than or equal to 1024"),
    ("--epochs 99999999999999999999", "--epochs is '99999999999999999999': input should be less than or equal to"),
    ("--batch-size 99999999999999999999", "--batch-size is '99999999999999999999'"),
    ("--milestones 99999999999999999999", "--milestones is '99999999999999999999'"),
    ("--p nan", "--p is 'nan': give a finite number"),
    ("--noise 1e300", "--noise is '1e300': give a finite number of at most 1e+30"),
    (
        "--prunings 1000000000 --start 0.5 --end 0.5",
        "--prunings is '1000000000': input should be less than or equal to",
    ),
    ("--image-size 32", "--image-size applies to photographs only"),
    (f"--data {LONG}", "unknown data set 'xxx"),
    (f"--recipe {LONG}", "unknown recipe 'xxx"),
]


@pytest.mark.parametrize("command", ["train", "plan"])
@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_nonsense_is_refused(
    command: str,
    arguments: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    epochs = [] if "--epochs" in arguments else ["--epochs", "2"]
    assert flipout(monkeypatch, command, *arguments.split(), *epochs) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train --device meta", "--device meta is not available here"),
        ("train --method snip --rounds 1000000000", "rounds is 1000000000; give at least 1 and at most 10,000"),
        ("train --method snip --rounds 0", "rounds is 0; give at least 1"),
        ("plan --method lottery --rounds 1000000000", "rounds is 1000000000; give at least 1 and at most 10,000"),
        (f"train --out {LONG}", "File name too long; choose a shorter name"),
        (f"show {LONG}", "File name too long; choose a shorter name"),
        (f"evaluate {LONG}", "File name too long; choose a shorter name"),
        (f"report {LONG}", "File name too long; choose a shorter name"),
        (f"sweep demo --out {LONG}", "File name too long"),
        (f"sweep {LONG}", "unknown grid 'xxx"),
        ("sweep demo --threads 100000", "less than or equal to 1024"),
        ("sweep demo --set p=-1", "invalid run: p is -1.0; give at least 0"),
    ],
)
def test_other_nonsense_is_refused(
    arguments: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert flipout(monkeypatch, *arguments.split(), width=1000) == 2
    assert message in capsys.readouterr().err


def test_a_long_name_of_a_model_is_cut_in_the_name_of_the_run() -> None:
    from flipout_lab import make_settings

    names = [make_settings(model=f"m:{'é' * 300}", data="digits", seed=seed).folder_name() for seed in (0, 1)]
    assert all(len(name.encode()) <= 255 for name in names)
    assert names[0] != names[1]
