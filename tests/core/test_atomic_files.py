"""Atomic writes: a file is complete or does not exist."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flipout.atomic_files import leftover_files, replacing


def test_the_file_is_replaced_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_text("old")
    with replacing(path) as temporary:
        assert temporary.suffix == ".onnx"
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "net"
    path.write_text("old")

    def fail_while_writing() -> None:
        with replacing(path) as temporary:
            temporary.write_text("new")
            raise KeyError

    with pytest.raises(KeyError):
        fail_while_writing()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_file_and_folder_are_synchronized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def record(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    with replacing(tmp_path / "net.bin") as temporary:
        temporary.write_text("new")
    assert synced == [temporary.name, tmp_path.name]


def test_threads_that_write_one_file_do_not_interfere(tmp_path: Path) -> None:
    path, errors = tmp_path / "net.bin", list[BaseException]()
    contents = [bytes([number]) * 10_000 for number in range(8)]

    def write(content: bytes) -> None:
        try:
            for _ in range(20):
                with replacing(path) as temporary:
                    temporary.write_bytes(content)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["step-0000000001.ckpt", "config.json", "noextension", ".hidden"])
def test_leftovers_of_a_killed_process_are_found(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("old")
    code = f"""
import os, pathlib, signal
from flipout.atomic_files import replacing
with replacing(pathlib.Path({str(path)!r})) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    (leftover,) = leftover_files(tmp_path)
    assert leftover.read_text() == "half"
    assert path.read_text() == "old"
