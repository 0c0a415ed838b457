"""Files of the lab: written completely or not at all, and leftovers of killed processes."""

from __future__ import annotations

import threading
from pathlib import Path

from flipout.atomic_files import leftover_files
from flipout_lab.files import open_replacement, remove_leftovers, write_bytes


def test_threads_that_write_one_file_do_not_interfere(tmp_path: Path) -> None:
    path, errors = tmp_path / "model.safetensors", list[Exception]()
    contents = [bytes([number]) * 10_000 for number in range(8)]

    def write(content: bytes) -> None:
        try:
            for _ in range(20):
                write_bytes(path, content)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


def test_leftovers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    kept = [tmp_path / name for name in (".hidden", "config.json", "step-0000000001.ckpt")]
    for path in kept:
        path.write_text("old")
        with open_replacement(path):
            (temporary,) = leftover_files(tmp_path)
            left = temporary.name
        (tmp_path / left).write_text("half")  # as a process leaves it that is killed here
        remove_leftovers(tmp_path)
        path.write_text("old")
    assert sorted(tmp_path.iterdir()) == kept
    assert {path.read_text() for path in kept} == {"old"}
