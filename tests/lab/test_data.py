"""Reading, checking and downloading data sets."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import os
import pickle
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from flipout.lab import LabError, load
from flipout.lab.data import DATA, cifar, folder, home, idx
from flipout.lab.data.batches import augment, prepare, statistics, validation_size

CPU = torch.device("cpu")


def idx_file(array: np.ndarray) -> bytes:
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(head + array.tobytes())


@pytest.fixture
def small_mnist(monkeypatch: pytest.MonkeyPatch) -> idx.Family:
    """A data set in MNIST's form at the place of MNIST."""
    rng = np.random.default_rng(0)
    where = Path(os.environ["FLIPOUT_DATA"]) / "mnist"
    where.mkdir(parents=True)
    md5 = []
    for name in idx.NAMES:
        n = 20 if name.startswith("train") else 10
        array = rng.integers(0, 256, (n, 28, 28), np.uint8) if "images" in name else np.arange(n, dtype=np.uint8) % 10
        (where / name).write_bytes(idx_file(array))
        md5.append(hashlib.md5((where / name).read_bytes()).hexdigest())
    family = idx.Family("mnist", ("http://127.0.0.1:1/",), tuple(md5))  # type: ignore[arg-type]
    monkeypatch.setattr(idx, "MNIST", family)
    return family


def test_files_that_are_there_are_used_as_they_are(small_mnist: idx.Family) -> None:
    data = load("mnist")
    assert data.shape == (1, 28, 28)
    assert (len(data.train_labels), len(data.test_labels)) == (20, 10)
    assert data.train_labels.tolist() == [*range(10), *range(10)]
    assert data.train_images.dtype == torch.uint8


@pytest.mark.parametrize("damage", ["truncated", "altered"])
def test_a_damaged_file_is_refused_by_its_checksum(small_mnist: idx.Family, damage: str) -> None:
    path = Path(os.environ["FLIPOUT_DATA"]) / "mnist" / idx.NAMES[0]
    content = path.read_bytes()
    path.write_bytes(content[:-10] if damage == "truncated" else content[:50] + b"!" + content[51:])
    with pytest.raises(LabError, match=rf"{idx.NAMES[0]} is damaged or not the published file.*Delete it"):
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
def test_offline_the_error_says_which_file_to_put_where(name: str, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise home.requests.ConnectionError("no network")

    monkeypatch.setattr(home.requests, "get", offline)
    expected = Path(os.environ["FLIPOUT_DATA"]) / file
    with pytest.raises(
        LabError, match=rf"{expected} is not there.*[\s\S]*no network[\s\S]*put it at exactly that path"
    ):
        load(name)


class Server(http.server.BaseHTTPRequestHandler):
    """Serves one file, in ranges if asked, and breaks off once."""

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
    source = home.Source("file.bin", hashlib.md5(Server.content).hexdigest(), [server])
    assert home.fetch(tmp_path, source).read_bytes() == Server.content
    assert home.fetch(tmp_path, source).read_bytes() == Server.content
    assert Server.ranges == [None]


def test_a_download_that_breaks_off_is_resumed(server: str, tmp_path: Path) -> None:
    Server.break_at = 70_000
    source = home.Source("file.bin", hashlib.md5(Server.content).hexdigest(), [server])
    with pytest.raises(LabError, match="could not be downloaded"):
        home.fetch(tmp_path, source)
    have = (tmp_path / "file.bin.part").stat().st_size
    assert 0 < have <= 70_000
    assert home.fetch(tmp_path, source).read_bytes() == Server.content
    assert Server.ranges == [None, f"bytes={have}-"]
    assert [path.name for path in tmp_path.iterdir()] == ["file.bin"]


def test_a_download_that_is_not_the_published_file_is_thrown_away(server: str, tmp_path: Path) -> None:
    with pytest.raises(LabError, match="could not be downloaded"):
        home.fetch(tmp_path, home.Source("file.bin", "0" * 32, [server]))
    assert list(tmp_path.iterdir()) == []


# CIFAR-10


def batch_file(pixels: bytes, labels: list[int], *, extra: bytes = b"") -> bytes:
    """A pickle of the form that the published ones have, opcode by opcode."""

    def string(text: bytes) -> bytes:
        return b"T" + struct.pack("<I", len(text)) + text

    numbers = b"".join(b"K" + bytes([label]) for label in labels)
    return b"\x80\x02}(" + extra + string(b"data") + string(pixels) + string(b"labels") + b"](" + numbers + b"eu."


def test_a_batch_is_read_without_unpickling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickle, "loads", None)
    monkeypatch.setattr(pickle, "load", None)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, 32, 32), np.uint8)
    images, labels = cifar.parse(batch_file(pixels.tobytes(), [7, 0, 9]), "batch")
    assert torch.equal(images, torch.from_numpy(pixels))
    assert labels.tolist() == [7, 0, 9]


def test_code_in_a_batch_is_not_executed(tmp_path: Path) -> None:
    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "executed"),)

    with pytest.raises(LabError, match="not a batch of CIFAR-10"):
        cifar.parse(pickle.dumps(Attack(), protocol=2), "batch")
    assert not (tmp_path / "executed").exists()


def test_a_missing_batch_is_named() -> None:
    batches = Path(os.environ["FLIPOUT_DATA"]) / "cifar10" / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    with pytest.raises(LabError, match=r"data_batch_1 is not there: put it there, or delete"):
        load("cifar10")
    (batches / "data_batch_1").write_bytes(b"nonsense")
    with pytest.raises(LabError, match="data_batch_1 is damaged"):
        load("cifar10")


# Photographs


def photographs(where: Path, parts: tuple[str, ...] = ("train", "val"), size: tuple[int, int] = (20, 14)) -> Path:
    for part in parts:
        for number, name in enumerate(("cat", "dog")):
            (where / part / name).mkdir(parents=True)
            for i in range(3):
                Image.new("RGB", size, (100 * number, 10 * i, 5)).save(where / part / name / f"{i}.png")
    return where


def test_a_folder_of_ones_own(tmp_path: Path) -> None:
    data = load(str(photographs(tmp_path, ("train", "test"))), image_size=8)
    assert data.shape == (3, 8, 8)
    assert data.classes == 2
    assert data.train_labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.train_images[4, :, 0, 0].tolist() == [100, 10, 5]


def test_folders_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "a" / "train").mkdir(parents=True)
    with pytest.raises(LabError, match="needs the folders train and test"):
        load(str(tmp_path / "a"))
    (tmp_path / "a" / "test").mkdir()
    with pytest.raises(LabError, match="at least two classes"):
        load(str(tmp_path / "a"))
    photographs(tmp_path / "b")
    (tmp_path / "b" / "val" / "bird").mkdir()
    with pytest.raises(LabError, match=r"classes that .* has not: bird"):
        load(str(tmp_path / "b"))
    photographs(tmp_path / "c")
    path = tmp_path / "c" / "train" / "cat" / "1.png"
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(LabError, match=r"cat/1\.png cannot be read as an image"):
        load(str(tmp_path / "c"), image_size=8)


def test_an_incomplete_imagenette_is_not_taken_for_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    where = photographs(Path(os.environ["FLIPOUT_DATA"]) / "imagenette2-160")
    with pytest.raises(LabError, match="holds 6 training and 6 validation images, not 9,469 and 3,925"):
        load("imagenette-160")
    assert len(load(str(where), image_size=8).train_labels) == 6
    monkeypatch.setattr(folder, "COMPLETE", (6, 6))
    assert load("imagenette-160").shape == (3, 128, 128)


# Everything else


def two_classes() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return torch.randn(6, 1, 4, 4), torch.tensor([0, 1] * 3), torch.randn(2, 1, 4, 4), torch.tensor([0, 1])


def nonsense() -> int:
    return 3


def flat() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return torch.randn(6, 4), torch.tensor([0, 1] * 3), torch.randn(2, 4), torch.tensor([0, 1])


def test_a_function_of_ones_own() -> None:
    data = load("tests.lab.test_data:two_classes")
    assert (data.classes, data.shape) == (2, (1, 4, 4))
    for name, message in (
        ("nonsense", "must return four tensors"),
        ("flat", r"give \(number, channels, height, width\)"),
        ("absent", "has no function 'absent'"),
    ):
        with pytest.raises(LabError, match=message):
            load(f"tests.lab.test_data:{name}")
    with pytest.raises(LabError, match="there is no module 'no_such_module'"):
        load("no_such_module:f")


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(LabError, match="unknown data set 'mnits'; did you mean 'mnist'"):
        load("mnits")
    with pytest.raises(LabError, match="--image-size is for photographs"):
        load("digits", image_size=32)


def test_what_is_said_of_digits_is_true() -> None:
    data = load("digits")
    assert len(data.train_labels) == DATA["digits"].train
    assert data.shape == DATA["digits"].shape
    assert len(data.train_labels) + len(data.test_labels) == 1797
    assert torch.equal(load("digits").train_images, data.train_images)


def test_training_data_is_normalised_and_test_data_by_the_same_numbers() -> None:
    train, test = prepare(load("digits"), CPU, validate=False)
    assert abs(float(train.images.mean())) < 1e-5
    assert float(train.images.std()) == pytest.approx(1, abs=1e-3)
    assert abs(float(test.images.mean())) > 1e-5


def test_a_validation_split_is_taken_from_the_training_set() -> None:
    data = load("digits")
    train, held = prepare(data, CPU, validate=True)
    assert (len(train), len(held)) == (1437 - 143, 143)
    both = torch.cat([train.labels, held.labels]).bincount()
    assert torch.equal(both, data.train_labels.bincount())
    everything = {tuple(image.flatten().tolist()) for image in (*train.images, *held.images)}
    assert len(everything) > 1400  # (some digits are in there twice)
    assert (validation_size("cifar10", 50_000), validation_size("imagenette", 9_469)) == (10_000, 2_000)
    assert validation_size("cifar10", 100) == 10


def test_an_epochs_order_is_a_function_of_seed_and_epoch() -> None:
    images, _ = prepare(load("digits"), CPU, validate=False)

    def order(seed: int, epoch: int, skip: int = 0) -> list[int]:
        taken = []
        for _, labels in images.shuffled(100, seed=seed, epoch=epoch, skip=skip):
            taken += labels.tolist()
        return taken

    assert order(0, 0) == order(0, 0)
    assert sorted(order(0, 0)) == sorted(images.labels.tolist())
    assert order(0, 0) != order(0, 1)
    assert order(0, 1) != order(1, 0)
    assert order(3, 4)[500:] == order(3, 4, skip=5)


def test_images_too_large_for_floats_are_normalised_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    from flipout.lab.data import batches

    whole, _ = prepare(load("digits"), CPU, validate=False)
    monkeypatch.setattr(batches, "FLOAT_LIMIT", 0)
    parts, _ = prepare(load("digits"), CPU, validate=False)
    assert parts.images.dtype == torch.uint8
    index = torch.arange(7)
    assert torch.equal(whole.take(index)[0], parts.take(index)[0])


@pytest.mark.parametrize(("flip", "crop"), [(True, 0), (False, 2), (True, 3)])
def test_augmentation_against_one_image_at_a_time(flip: bool, crop: int) -> None:
    images = torch.rand(40, 3, 8, 6)
    result = augment(images, flip=flip, crop=crop, seed=3, step=11)
    assert torch.equal(result, augment(images, flip=flip, crop=crop, seed=3, step=11))
    assert not torch.equal(result, augment(images, flip=flip, crop=crop, seed=3, step=12))
    padded = torch.nn.functional.pad(images, [crop] * 4)
    seen = set()
    for number, image in enumerate(result):
        found = [
            (mirrored, top, left)
            for mirrored in ({False, True} if flip else {False})
            for top in range(2 * crop + 1)
            for left in range(2 * crop + 1)
            if torch.equal(image, _window(padded[number], top, left, mirrored))
        ]
        assert len(found) == 1
        seen.add(found[0])
    assert len(seen) > (1 if not crop else 10)


def _window(image: Tensor, top: int, left: int, mirrored: bool) -> Tensor:
    window = image[:, top : top + 8, left : left + 6]
    return window.flip(2) if mirrored else window


# The real thing


def test_real_mnist(real_mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLIPOUT_DATA", str(real_mnist))
    data = load("mnist")
    assert data.train_images.shape == (60_000, 1, 28, 28)
    assert data.train_labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.train_labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]


def test_real_cifar10(real_cifar10: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLIPOUT_DATA", str(real_cifar10))
    data = load("cifar10")
    assert data.train_images.shape == (50_000, 3, 32, 32)
    assert data.train_labels.bincount().tolist() == [5000] * 10
    assert data.test_labels.bincount().tolist() == [1000] * 10
    mean, deviation = (part.tolist() for part in statistics(data.train_images))
    assert mean == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)
    assert deviation == pytest.approx([0.2470, 0.2435, 0.2616], abs=1e-4)


def test_real_photographs(real_photographs: Path) -> None:
    data = load(str(real_photographs), image_size=32)
    assert data.shape == (3, 32, 32)
    assert data.classes == 10
    assert data.train_labels.bincount().tolist() == [30] * 10
