"""Help texts: panels by subject, real types and defaults, and the options of the chosen method."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer

import flipout
from flipout_lab import cli
from flipout_lab.runs.method_options import options_of
from flipout_lab.runs.settings import fields, flag


@pytest.mark.parametrize("command", ["train", "plan"])
def test_panels_by_subject(command: str, typed: Any) -> None:
    _, said = typed(command, "--help")
    panels = re.findall(r"╭─ (.*?) ─+╮", said)
    assert panels == ["Options", "Data", "Network", "Training", "Pruning", "This method only: flipout", "Output"]
    assert "TEXT" not in said
    for line in (
        r"--epochs +INT +passes over the training data \[default: 30\]",
        r"--learning-rate +FLOAT +initial learning rate \[default: 0\.1\]",
        r"--optimizer +sgd\|adam\|adamw",
        r"--milestones +INT,\.\.\..*\[default: 150,250\]",
        r"--augment +crop and mirror colour images \[default: yes; --no-augment\]",
        r"--noise +FLOAT +scale of the gradient noise",
        r"--p +FLOAT .*\[default: 4\]",
    ):
        assert re.search(line, said), line


@pytest.mark.parametrize("method", sorted(flipout.METHODS))
@pytest.mark.parametrize("width", [80, 100])
def test_every_setting_and_option_is_there(method: str, width: int, typed: Any) -> None:
    _, said = typed("train", f"--method={method}", "--help", width=width)
    found = set(re.findall(r"^│ (--[a-z0-9-]+)", said, re.MULTILINE))
    options = options_of(flipout.METHODS[method])
    assert found == {
        *map(flag, fields()),
        *map(flag, options),
        *("--recipe", "--help", "--out", "--tensorboard", "--mlflow", "--wandb", "--quiet"),
    }
    assert ("This method only" in said) == any(option.own for option in options.values())
    assert max(map(len, said.splitlines())) <= width


def test_defaults_of_a_recipe(typed: Any) -> None:
    _, said = typed("train", "--recipe", "paper", "--help")
    assert re.search(r"--epochs .*\[default: 350\]", said)
    assert re.search(r"--schedule .*\[default: paper\]", said)


def test_an_unknown_method_or_recipe_has_no_help(typed: Any) -> None:
    for option, name, nearest in (("--method", "flip-out", "flipout"), ("--recipe", "papper", "paper")):
        code, said = typed("train", option, name, "--help")
        assert (code, f"did you mean '{nearest}'" in said) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "expected"), [(["--method", "lottery"], "--rewind-to"), (["--method", "lot"], "--p")]
)
def test_shell_completion_knows_the_options_of_the_method(arguments: list[str], expected: str) -> None:
    group: Any = typer.main.get_command(cli.app)
    command = group.commands["train"]
    command.make_context("train", arguments, resilient_parsing=True)
    assert expected in {name for parameter in command.params for name in parameter.opts}
