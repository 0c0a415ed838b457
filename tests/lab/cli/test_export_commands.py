"""`flipout export` and `flipout card` on the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from flipout import export
from flipout_lab import load_run, make_settings, train
from flipout_lab.runs import exporting
from tests.lab.helpers import flipout


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "one"
    train(make_settings(data="digits", model="mlp", method="flipout", sparsity=0.98, epochs=2), folder)
    return folder


def exported(
    run: Path, form: str, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    assert flipout(monkeypatch, "export", str(run), "--to", form, "--out", str(out)) == 0
    printed = capsys.readouterr().out
    assert "100 of 100" in printed
    assert "random images" in printed
    return printed


def test_compact_runs_with_torch_alone(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exported(run, "compact", tmp_path / "net", monkeypatch, capsys)
    x = torch.randn(5, 1, 8, 8)
    small = torch.export.load(tmp_path / "net.pt2").module()
    torch.testing.assert_close(small(x), load_run(run)(x), rtol=1e-3, atol=1e-4)
    weights = sum(tensor.numel() for tensor in small.state_dict().values())
    assert weights < sum(parameter.numel() for parameter in load_run(run).parameters()) / 2


def test_sparse_is_exact(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = exported(run, "sparse", tmp_path / "net.safetensors", monkeypatch, capsys)
    assert "0, in outputs for 100 random images" in printed
    loaded, state = export.load(tmp_path / "net.safetensors"), load_run(run).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())
    assert [path.name for path in tmp_path.iterdir()] == ["net.safetensors"]


def test_onnx(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    exported(run, "onnx", tmp_path / "net.v1", monkeypatch, capsys)
    session = onnxruntime.InferenceSession(tmp_path / "net.v1.onnx")
    x = torch.randn(3, 1, 8, 8)
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), load_run(run)(x), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "{run}", "--to", "spars", "--out", "net"], "unknown format 'spars'; did you mean 'sparse'?"),
        (
            ["export", "{run}", "--to", "sparse", "--out", "nowhere/net"],
            "the folder nowhere does not exist: create it first",
        ),
        (["export", "{run}/nothing", "--to", "sparse", "--out", "net"], "is not the folder of a run"),
        (["export", "{run}/..", "--to", "sparse", "--out", "net"], "is not a run but contains 1 of them: choose one"),
        (["card", "{run}/.."], "is not a run but contains 1 of them: choose one"),
    ],
)
def test_errors_name_the_fix(
    arguments: list[str],
    message: str,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert flipout(monkeypatch, *(part.format(run=run) for part in arguments)) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_card(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)  # onnxruntime has a test of its own
    assert flipout(monkeypatch, "card", str(run), "--repetitions", "1", "--json") == 0
    read = json.loads(capsys.readouterr().out)
    result = json.loads((run / "result.json").read_text())
    assert (read["prunable"], read["nonzero"]) == (result["prunable"], result["nonzero"])
    assert {each["batch"] for each in read["latencies"]} == {1, 32}
    assert flipout(monkeypatch, "card", str(run), "--repetitions", "1", "--markdown") == 0
    assert capsys.readouterr().out.startswith("| ")
    assert flipout(monkeypatch, "card", str(run), "--repetitions", "1") == 0
    printed = capsys.readouterr().out
    assert f"{result['nonzero']:,}" in printed
    assert "A GPU is not faster with zeros" in printed


def test_pt2_files_need_their_suffix() -> None:
    with pytest.raises(ValueError, match=r"name it net\.pt2"):
        export.to_pt2(torch.nn.Linear(2, 2), "net", torch.randn(1, 2))


def test_a_file_with_different_outputs_is_removed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = replace(exporting.FORMATS["sparse"], run=lambda model, path, images: model(images) + 0.01)
    monkeypatch.setitem(exporting.FORMATS, "sparse", wrong)
    assert flipout(monkeypatch, "export", str(run), "--to", "sparse", "--out", str(tmp_path / "net")) == 2
    assert "the outputs of the file differ from those of the network" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
