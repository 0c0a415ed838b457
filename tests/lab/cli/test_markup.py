"""Names of the user are printed as they are, in every command: rich's markup and emoji are not interpreted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.helpers import flipout

NAMES = ["a[/b]", "[red]x[bold]", ":smile:", "[link=x]\\["]


@pytest.mark.parametrize("name", [NAMES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:])])
def test_every_command(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        assert flipout(monkeypatch, *arguments, width=400) == 0
        return capsys.readouterr().out

    assert f"saved in {name}/run" in run("train", "--epochs", "1", "--out", f"{name}/run")
    assert "is already finished" in run("train", "--epochs", "1", "--out", f"{name}/run")
    run("show", f"{name}/run")
    assert f"{name}/run: " in run("evaluate", f"{name}/run")
    assert f"{name}.safetensors" in run("export", f"{name}/run", "--to", "sparse", "--out", name)
    assert f"page: {name}/report" in run("report", name)
    assert flipout(monkeypatch, "show", f"{name}/none", width=400) == 2
    assert f"{name}/none is not the folder" in capsys.readouterr().err
    assert flipout(monkeypatch, "train", "--model", name, width=400) == 2
    assert f"{name!r}" in capsys.readouterr().err
    escaped = name.replace("\\", "\\\\")
    Path("grid.toml").write_text(f'title = "{escaped}"\n[[part]]\nname = "{escaped}"\nepochs = 1\n')
    assert name in run("sweep", "grid.toml", "--dry-run")


def test_the_network_of_a_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dataclasses import replace

    monkeypatch.chdir(tmp_path)
    assert flipout(monkeypatch, "train", "--epochs", "1", "--out", "run", "--width", "0.1", "--quiet") == 0
    monkeypatch.setattr(
        "flipout_lab.cli.run_commands.replace",
        lambda card, network: replace(card, network=network.replace("mlp", "m[/b]:smile:")),
    )
    assert flipout(monkeypatch, "card", "run", "--repetitions", "1", width=400) == 0
    assert "m[/b]:smile:" in capsys.readouterr().out
