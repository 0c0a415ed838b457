"""The commands for many runs, as a user types them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flipout_lab import cli

Run = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def flipout(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command. Return its exit code, its output and its error output."""

    def run(command: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["flipout", *command.split()])
        for console in (cli.console, cli.errors):
            monkeypatch.setattr(console, "_width", 200)
        code = 0
        try:
            cli.main()
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        return code, *capsys.readouterr()

    return run


def test_sweep_report_reproduce_claims(flipout: Run, tmp_path: Path) -> None:
    """The four commands for many runs, one after the other."""
    grid = tmp_path / "grid.toml"
    grid.write_text(
        '[base]\nrecipe = "paper"\nmodel = "mlp"\nepochs = 2\nwidth = 0.25\n'
        '[[part]]\nname = "results"\nmethod = ["flipout", "magnitude"]\nsparsity = [0.75, 0.9]\n'
        '[[part]]\nname = "ablation"\nmethod = "magnitude"\nnoise = 1.0\nsparsity = 0.75\n'
    )
    code, printed, _ = flipout(f"sweep {grid} --dry-run --part ablation")
    assert code == 0
    assert printed.count("mlp") == 1
    assert "noise 1," in printed
    out = tmp_path / "runs"
    code, printed, _ = flipout(f"sweep {grid} --out {out} -j 1 --threads 1 --set batch_size=64 --part results")
    assert code == 0
    assert "4/4" in printed
    assert "done" in printed
    code, printed, _ = flipout(f"report {out}")
    assert code == 0
    assert (out / "report" / "index.html").exists()
    code, printed, _ = flipout(f"claims {out} --out {tmp_path / 'page.md'}")
    assert code == 0
    assert "FlipOut is the best method" in (tmp_path / "page.md").read_text()
    code, printed, _ = flipout("reproduce table1 --scale paper")
    assert code == 0
    assert "117" in printed


def test_errors_in_sweep_commands_name_the_fix(flipout: Run, tmp_path: Path) -> None:
    for command, words in (
        ("sweep quik", "did you mean 'quick'"),
        ("sweep quick --part tabel2", "did you mean 'table2'"),
        ("sweep quick --set epoch", "is not of the form KEY=VALUE"),
        ("sweep quick --set epoch=3", "did you mean 'epochs'"),
        ("sweep quick --ray auto -j 2", "leave it out"),
        ("reproduce table4", "did you mean"),
        ("report nothing-here", "nothing-here does not exist"),
        (f"claims {tmp_path}", "contains no runs"),
    ):
        code, _, error = flipout(command)
        assert code == 2, command
        assert words in error


def test_markup_in_names_is_not_interpreted(flipout: Run, tmp_path: Path) -> None:
    grid, out = tmp_path / "grid.toml", tmp_path / "[red]:smile:"
    grid.write_text(
        '[base]\nmodel = "mlp"\nepochs = 1\nwidth = 0.25\n'
        '[[part]]\nname = "[/b]"\nmethod = "magnitude"\n[[part]]\nname = "[bold]"\nmethod = "random"\n'
    )
    code, printed, _ = flipout(f"sweep {grid} --dry-run")
    assert code == 0
    assert [line.split()[-1] for line in printed.splitlines()] == ["[/b]", "[bold]"]
    code, printed, _ = flipout(f"sweep {grid} --out {out} -j 1 --threads 1")
    assert code == 0
    assert f"saved in {out}\n" in printed
    code, printed, _ = flipout(f"report {out}")
    assert code == 0
    assert f"page: {out}/report/index.html\n" in printed


def test_the_demo(flipout: Run, tmp_path: Path) -> None:
    code, printed, _ = flipout(f"demo --out {tmp_path} --quiet --set epochs=1 --set seed=0")
    assert code == 0
    table = printed[printed.index("MLP on digits, 1 epoch: test accuracy") :]
    assert all(method in table for method in ("FlipOut", "Global magnitude", "SNIP", "Random", "Dense"))
    assert f"page: {tmp_path}/report/index.html" in printed
    assert (tmp_path / "report" / "index.html").exists()
    pictures = [line.removeprefix("picture: ") for line in printed.splitlines() if line.startswith("picture: ")]
    drawn = ("accuracy", "milliseconds-of-inference", "seconds-of-training")
    assert [Path(picture).stem for picture in pictures] == [f"in-short-{name}" for name in drawn]
    assert all(Path(picture).stat().st_size > 10_000 for picture in pictures)
    page = (tmp_path / "report" / "index.html").read_text().rpartition("</head>")[2]
    assert "What to try next" in page
    assert "missing" not in page
    (shown,) = (line for line in printed.splitlines() if line.startswith("  flipout show "))
    assert flipout(shown.removeprefix("  flipout "))[0] == 0
