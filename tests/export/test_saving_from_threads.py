"""Threads that save to one path while another thread loads it: every file is whole."""

from __future__ import annotations

import threading
from pathlib import Path

import torch
from torch import Tensor

from flipout.export import load, save

THREADS, SAVES = 8, 12


def state_of(thread: int) -> dict[str, Tensor]:
    """Return a state that only this thread saves, of a size that no other has, with nothing but its number."""
    weight = torch.zeros(100 + 7 * thread, 40)
    weight[::3] = thread + 1
    return {"weight": weight, "thread": torch.tensor(thread)}


def test_every_file_is_whole(tmp_path: Path) -> None:
    path, errors, loaded = tmp_path / "net.safetensors", list[BaseException](), list[int]()
    save(state_of(0), path)
    start, saving = threading.Barrier(THREADS + 1), threading.Event()

    def write(thread: int) -> None:
        try:
            start.wait()
            for _ in range(SAVES):
                save(state_of(thread), path)
        except BaseException as error:
            errors.append(error)

    def read() -> None:
        try:
            start.wait()
            while True:
                is_last = saving.is_set()
                found = load(path)
                thread = int(found["thread"])
                expected = state_of(thread)
                assert found.keys() == expected.keys()
                assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
                loaded.append(thread)
                if is_last:
                    return
        except BaseException as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(thread,)) for thread in range(THREADS)]
    reader = threading.Thread(target=read)
    for thread in (*writers, reader):
        thread.start()
    for thread in writers:
        thread.join()
    saving.set()
    reader.join()
    assert errors == []
    assert len(loaded) > 1
    assert [file.name for file in tmp_path.iterdir()] == [path.name]  # no temporary file is left
