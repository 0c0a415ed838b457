"""Nonsense gets a sentence that names the fix, never a traceback, in `train` and in `plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

LONG = "x" * 300
REFUSED = [
    ("--seed 99999999999999999999", "--seed"),
    ("--learning-rate inf", "--learning-rate"),
    ("--learning-rate 1e300", "--learning-rate"),
    ("--width inf", "--width"),
    ("--width 1e9", "--width"),
    ("--method lottery --rewind-to inf", "--rewind-to"),
    ("--method lottery --rewind-to 1e29", "before the first pruning"),
    ("--method hoyer-square --fine-tune inf", "--fine-tune"),
    ("--method hoyer-square --fine-tune 1e300", "--fine-tune"),
    ("--threads 100000", "--threads"),
    ("--epochs 99999999999999999999", "--epochs"),
    ("--batch-size 99999999999999999999", "--batch-size"),
    ("--milestones 99999999999999999999", "--milestones"),
    ("--p nan", "--p"),
    ("--noise 1e300", "--noise"),
    ("--prunings 1000000000 --start 0.5 --end 0.5", "--prunings"),
    ("--image-size 32", "--image-size"),
    (f"--data {LONG}", "unknown data set 'xxx"),
    (f"--recipe {LONG}", "unknown recipe 'xxx"),
]
"""What is typed, and the subject of the error."""


@pytest.mark.parametrize("command", ["train", "plan"])
@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_nonsense_is_refused(
    command: str, arguments: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    epochs = [] if "--epochs" in arguments else ["--epochs", "2"]
    code, said = typed(command, *arguments.split(), *epochs)
    assert (code, message in said) == (2, True), said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train --device meta", "--device meta"),
        ("train --method snip --rounds 1000000000", "rounds is 1000000000"),
        ("train --method snip --rounds 0", "rounds is 0"),
        ("plan --method lottery --rounds 1000000000", "rounds is 1000000000"),
        (f"train --out {LONG}", "File name too long"),
        (f"show {LONG}", "File name too long"),
        (f"evaluate {LONG}", "File name too long"),
        (f"report {LONG}", "File name too long"),
        (f"sweep demo --out {LONG}", "File name too long"),
        (f"sweep {LONG}", "unknown grid 'xxx"),
        ("sweep demo --threads 100000", "1024"),
        ("sweep demo --set p=-1", "p is -1"),
    ],
)
def test_other_nonsense_is_refused(
    arguments: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    code, said = typed(*arguments.split(), width=1000)
    assert (code, message in said) == (2, True), said


def test_a_long_name_of_a_model_is_cut_in_the_name_of_the_run() -> None:
    from flipout_lab import make_settings

    names = [make_settings(model=f"m:{'é' * 300}", data="digits", seed=seed).folder_name() for seed in (0, 1)]
    assert all(len(name.encode()) <= 255 for name in names)
    assert names[0] != names[1]
