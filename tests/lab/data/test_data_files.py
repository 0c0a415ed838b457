"""The files of data sets: verified, downloaded, resumed, and read without executing anything in them."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import os
import pickle
import struct
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import requests
import torch
from PIL import Image

from flipout_lab import LabError, load, make_settings
from flipout_lab.data import data_readers, downloads


def idx_file(array: np.ndarray) -> bytes:
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(head + array.tobytes())


@pytest.fixture
def small_mnist(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small data set in the format and place of MNIST."""
    rng = np.random.default_rng(0)
    where = Path(os.environ["FLIPOUT_DATA"]) / "mnist"
    where.mkdir(parents=True)
    content = list[str]()
    for name in data_readers.NAMES:
        n = 20 if name.startswith("train") else 10
        array = rng.integers(0, 256, (n, 28, 28), np.uint8) if "images" in name else np.arange(n, dtype=np.uint8) % 10
        (where / name).write_bytes(idx_file(array))
        content.append(hashlib.md5(gzip.decompress((where / name).read_bytes())).hexdigest())
    monkeypatch.setitem(data_readers.IDX, "mnist", (("http://127.0.0.1:1/",), tuple(content)))


def test_existing_files_are_used(small_mnist: None) -> None:
    data = load("mnist")
    assert data.shape == (1, 28, 28)
    assert (len(data.train_labels), len(data.test_labels)) == (20, 10)
    assert data.train_labels.tolist() == [*range(10), *range(10)]
    assert data.train_images.dtype == torch.uint8


@pytest.mark.parametrize("damage", ["truncated", "altered"])
def test_a_damaged_file_is_rejected_by_its_checksum(small_mnist: None, damage: str) -> None:
    path = Path(os.environ["FLIPOUT_DATA"]) / "mnist" / data_readers.NAMES[0]
    content = path.read_bytes()
    path.write_bytes(content[:-10] if damage == "truncated" else content[:-50] + b"!" + content[-49:])
    with pytest.raises(LabError, match=rf"{data_readers.NAMES[0]} is damaged"):
        load("mnist")


def test_the_same_content_compressed_anew_is_accepted(small_mnist: None) -> None:
    """Linux distributions compress the files again."""
    before = load("mnist")
    for name in data_readers.NAMES:
        path = Path(os.environ["FLIPOUT_DATA"]) / "mnist" / name
        content = gzip.decompress(path.read_bytes())
        path.write_bytes(gzip.compress(content, compresslevel=1, mtime=1))
    assert torch.equal(load("mnist").train_images, before.train_images)
    path.write_bytes(gzip.compress(content[:-1] + b"!"))
    with pytest.raises(LabError, match=rf"{name} is damaged"):
        load("mnist")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("mnist", "mnist/train-images-idx3-ubyte.gz"),
        ("fashion-mnist", "fashion-mnist/train-images-idx3-ubyte.gz"),
        ("cifar10", "cifar10/cifar-10-python.tar.gz"),
        ("imagenette-160", "imagenette2-160.tgz"),
    ],
)
def test_offline_the_error_names_the_file_and_its_path(name: str, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise requests.ConnectionError("no network")

    monkeypatch.setattr(requests, "get", offline)
    expected = Path(os.environ["FLIPOUT_DATA"]) / file
    with pytest.raises(LabError, match=rf"{expected} [\s\S]*no network"):
        load(name)


class Server(http.server.BaseHTTPRequestHandler):
    """Serves one file, in ranges if requested, and can close the connection early once."""

    content: ClassVar[bytes] = bytes(range(256)) * 400
    break_at: ClassVar[int | None] = None
    ranges: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        Server.ranges.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(self.content) - start))
        self.end_headers()
        stop, Server.break_at = Server.break_at or len(self.content), None
        self.wfile.write(self.content[start:stop])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Server.ranges, Server.break_at = [], None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_address[1]}/file.bin"
        running.shutdown()


def test_a_download_is_checked_and_kept(server: str, tmp_path: Path) -> None:
    source = downloads.Source("file.bin", hashlib.md5(Server.content).hexdigest(), [server])
    assert downloads.fetch(tmp_path, source).read_bytes() == Server.content
    assert downloads.fetch(tmp_path, source).read_bytes() == Server.content
    assert Server.ranges == [None]


def test_a_download_that_breaks_off_is_resumed(server: str, tmp_path: Path) -> None:
    Server.break_at = 70_000
    source = downloads.Source("file.bin", hashlib.md5(Server.content).hexdigest(), [server])
    with pytest.raises(LabError, match="could not be downloaded"):
        downloads.fetch(tmp_path, source)
    have = (tmp_path / "file.bin.part").stat().st_size
    assert 0 < have <= 70_000
    assert downloads.fetch(tmp_path, source).read_bytes() == Server.content
    assert Server.ranges == [None, f"bytes={have}-"]
    assert names(tmp_path) == ["file.bin"]


def test_a_download_with_a_wrong_checksum_is_deleted(server: str, tmp_path: Path) -> None:
    with pytest.raises(LabError, match="could not be downloaded"):
        downloads.fetch(tmp_path, downloads.Source("file.bin", "0" * 32, [server]))
    assert names(tmp_path) == []


def test_processes_that_need_the_same_file_download_it_once(server: str, tmp_path: Path) -> None:
    source = downloads.Source("file.bin", hashlib.md5(Server.content).hexdigest(), [server])
    with ThreadPoolExecutor(4) as threads:  # each takes the lock for itself, as a process does
        paths = [threads.submit(downloads.fetch, tmp_path, source) for _ in range(4)]
    assert [path.result().read_bytes() for path in paths] == [Server.content] * 4
    assert Server.ranges == [None]


def test_an_archive_that_was_unpacked_in_part_is_unpacked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photographs(tmp_path / "pets")
    with tarfile.open(tmp_path / "pets.tgz", "w:gz") as archive:
        archive.add(tmp_path / "pets", "pets")
    source = downloads.Source("pets.tgz", hashlib.md5((tmp_path / "pets.tgz").read_bytes()).hexdigest(), [])
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "pets.tgz").rename(home / "pets.tgz")

    def interrupted(archive: tarfile.TarFile, where: str, **_: object) -> None:
        archive.extract("pets/train/cat/0.png", where, filter="data")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(tarfile.TarFile, "extractall", interrupted)
        with pytest.raises(KeyboardInterrupt):
            downloads.unpacked(home, "pets", source)
    assert names(home) == ["pets.tgz"]
    folder = downloads.unpacked(home, "pets", source)
    assert sorted(path.name for path in folder.rglob("*.png")) == sorted(["0.png", "1.png", "2.png"] * 4)
    assert names(home) == ["pets", "pets.tgz"]


def names(folder: Path) -> list[str]:
    """What is in a folder, without locks, which stay."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def batch_file(pixels: bytes, labels: list[int], *, extra: bytes = b"") -> bytes:
    """A pickle with the structure of the published files, opcode by opcode."""

    def string(text: bytes) -> bytes:
        return b"T" + struct.pack("<I", len(text)) + text

    numbers = b"".join(b"K" + bytes([label]) for label in labels)
    return b"\x80\x02}(" + extra + string(b"data") + string(pixels) + string(b"labels") + b"](" + numbers + b"eu."


def test_a_batch_is_read_without_unpickling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickle, "loads", None)
    monkeypatch.setattr(pickle, "load", None)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, 32, 32), np.uint8)
    images, labels = data_readers.parse_batch(batch_file(pixels.tobytes(), [7, 0, 9]), "batch")
    assert torch.equal(images, torch.from_numpy(pixels))
    assert labels.tolist() == [7, 0, 9]


def test_code_in_a_batch_is_not_executed(tmp_path: Path) -> None:
    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "executed"),)

    with pytest.raises(LabError, match="not a CIFAR-10 batch"):
        data_readers.parse_batch(pickle.dumps(Attack(), protocol=2), "batch")
    assert not (tmp_path / "executed").exists()


def test_a_missing_batch_is_named() -> None:
    batches = Path(os.environ["FLIPOUT_DATA"]) / "cifar10" / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    with pytest.raises(LabError, match=r"data_batch_1"):
        load("cifar10")
    (batches / "data_batch_1").write_bytes(b"nonsense")
    with pytest.raises(LabError, match="data_batch_1 is damaged"):
        load("cifar10")


def photographs(where: Path, parts: tuple[str, ...] = ("train", "val"), size: tuple[int, int] = (20, 14)) -> Path:
    for part in parts:
        for number, name in enumerate(("cat", "dog")):
            (where / part / name).mkdir(parents=True)
            for i in range(3):
                Image.new("RGB", size, (100 * number, 10 * i, 5)).save(where / part / name / f"{i}.png")
    return where


def test_an_image_folder_of_the_user(tmp_path: Path) -> None:
    data = load(str(photographs(tmp_path, ("train", "test"))), image_size=8)
    assert data.shape == (3, 8, 8)
    assert data.classes == 2
    assert data.train_labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.train_images[4, :, 0, 0].tolist() == [100, 10, 5]


def test_an_image_folder_below_the_data_folder() -> None:
    """A grid or a result then does not name the path on one machine."""
    photographs(Path(os.environ["FLIPOUT_DATA"]) / "pets")
    assert make_settings(data="pets").folder_name().startswith("pets-")
    assert len(load("pets", image_size=8).train_labels) == 6
    with pytest.raises(LabError, match="unknown data set 'pet'"):
        make_settings(data="pet")


def test_invalid_image_folders(tmp_path: Path) -> None:
    (tmp_path / "a" / "train").mkdir(parents=True)
    with pytest.raises(LabError, match="needs the folders train and test"):
        load(str(tmp_path / "a"))
    (tmp_path / "a" / "test").mkdir()
    with pytest.raises(LabError, match="at least two classes"):
        load(str(tmp_path / "a"))
    photographs(tmp_path / "b")
    (tmp_path / "b" / "val" / "bird").mkdir()
    with pytest.raises(LabError, match=r"classes that are missing in .*: bird"):
        load(str(tmp_path / "b"))
    photographs(tmp_path / "c")
    path = tmp_path / "c" / "train" / "cat" / "1.png"
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(LabError, match=r"cat/1\.png cannot be read as an image"):
        load(str(tmp_path / "c"), image_size=8)


def test_an_incomplete_imagenette_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    where = photographs(Path(os.environ["FLIPOUT_DATA"]) / "imagenette2-160")
    with pytest.raises(LabError, match="6 training and 6 validation"):
        load("imagenette-160")
    assert len(load(str(where), image_size=8).train_labels) == 6
    monkeypatch.setattr(data_readers, "COMPLETE", (6, 6))
    assert load("imagenette-160").shape == (3, 128, 128)


@pytest.mark.parametrize(
    "limit", [100, 200]
)  # more than twice the limit is an error of Pillow, more than once a warning
def test_a_decompression_bomb_is_named(limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photographs(tmp_path, size=(8, 8))
    Image.new("RGB", (18, 14)).save(tmp_path / "val" / "dog" / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with pytest.raises(LabError, match=rf"dog/bomb\.png .*{limit} pixels"):
        load(str(tmp_path), image_size=8)
