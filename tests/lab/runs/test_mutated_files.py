"""Files of an interrupted run that are truncated, altered or deleted: `train` resumes to the same bytes, or refuses.

The mutations are random with a fixed seed. FLIPOUT_ATTACK_SEED sets another one; a failure prints it.
"""

from __future__ import annotations

import random
import shutil
import warnings
from pathlib import Path

import pytest

from flipout_lab import LabError, Settings, make_settings, train
from flipout_lab.errors import StoppedError
from tests.attacks import seeds
from tests.lab.helpers import StopAt

pytestmark = [pytest.mark.slow, pytest.mark.attack]

(SEED,) = seeds(1)
ROUNDS = 30
METHODS = ["flipout", "lottery", "deep-r"]


def chosen(method: str) -> Settings:
    return make_settings(method=method, epochs=4, sparsity=0.9, width=0.25)


def mutate(path: Path, chance: random.Random) -> str:
    """Change a file in a random way; return what was done."""
    content = bytearray(path.read_bytes())
    kind = chance.choice(["truncate", "flip", "delete", "empty", "append", "zero"])
    if kind == "delete":
        path.unlink()
        return f"{path.name}: deleted"
    if kind == "truncate":
        del content[chance.randrange(len(content) or 1) :]
    elif kind == "empty":
        content.clear()
    elif kind == "append":
        content += chance.randbytes(chance.randint(1, 100))
    elif content:
        for _ in range(chance.randint(1, 8)):
            place = chance.randrange(len(content))
            content[place] = 0 if kind == "zero" else content[place] ^ (1 << chance.randrange(8))
    path.write_bytes(content)
    return f"{path.name}: {kind}"


def snapshot(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("method", METHODS)
def test_a_mutated_run_resumes_with_the_same_bytes_or_is_refused(method: str, tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train(chosen(method), whole)
    expected = (whole / "model.safetensors").read_bytes()
    with pytest.raises(StoppedError):
        train(chosen(method), stopped, view=StopAt(29))
    chance, resumed, refused = random.Random(f"{SEED} {method}"), 0, 0
    for number in range(ROUNDS):
        folder = Path(shutil.copytree(stopped, tmp_path / f"{number}"))
        files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".lock"]
        done = [mutate(path, chance) for path in chance.sample(files, chance.randint(1, len(files)))]
        what = f"FLIPOUT_ATTACK_SEED={SEED}, {method}, round {number}: {', '.join(done)}"
        before = snapshot(folder)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a damaged checkpoint is a warning
                train(chosen(method), folder)
        except LabError as error:
            refused += 1
            if "Traceback" in str(error) or not str(error):
                raise AssertionError(what) from error
            # Nothing is lost: what was there is still there.
            after = snapshot(folder)
            assert {name: after.get(name) for name in before} == before, what
        except Exception as error:
            raise AssertionError(what) from error
        else:
            resumed += 1
            assert (folder / "model.safetensors").read_bytes() == expected, what
        shutil.rmtree(folder)
    assert resumed, "no run was resumed"
    assert refused, "no run was refused"


def test_a_mutated_result_is_refused_or_read(tmp_path: Path) -> None:
    """A finished run is never run again because of a damaged file, and its model is never changed."""
    from flipout_lab import load_run
    from flipout_lab.runs.run_views import run_tables

    train(chosen("flipout"), tmp_path / "whole")
    expected = (tmp_path / "whole" / "model.safetensors").read_bytes()
    chance = random.Random(SEED)
    for number in range(3 * ROUNDS):
        folder = Path(shutil.copytree(tmp_path / "whole", tmp_path / f"{number}"))
        name = chance.choice(["config.json", "result.json", "metrics.jsonl", "model.safetensors"])
        what = f"FLIPOUT_ATTACK_SEED={SEED}, round {number}: {mutate(folder / name, chance)}"
        for use in (lambda f: train(chosen("flipout"), f), lambda f: list(run_tables(f)), load_run):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    use(folder)
            except LabError:
                pass
            except Exception as error:
                raise AssertionError(what) from error
        if name != "model.safetensors":
            assert (folder / "model.safetensors").read_bytes() == expected, what
        shutil.rmtree(folder)


def test_checkpoints_of_other_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        train(chosen("flipout"), tmp_path, view=StopAt(29))
    (tmp_path / "config.json").unlink()
    other = make_settings(method="flipout", epochs=4, sparsity=0.9, width=0.25, learning_rate=0.01)
    with pytest.raises(LabError, match=r"other settings; delete .*checkpoint"):
        train(other, tmp_path)
    train(chosen("flipout"), tmp_path)
