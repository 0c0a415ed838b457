"""Data sets by name, and their preparation for training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from flipout_lab import LabError, load
from flipout_lab.data import DATA
from flipout_lab.data.batches import augment, channel_statistics, prepare, validation_size
from flipout_lab.data.data_catalogue import data_title

CPU = torch.device("cpu")


def two_classes() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return torch.randn(6, 1, 4, 4), torch.tensor([0, 1] * 3), torch.randn(2, 1, 4, 4), torch.tensor([0, 1])


def nonsense() -> int:
    return 3


def one_label() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return torch.randn(6, 1, 4, 4), torch.tensor([0, 1] * 3), torch.randn(2, 1, 4, 4), torch.tensor([0])


def flat() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return torch.randn(6, 4), torch.tensor([0, 1] * 3), torch.randn(2, 4), torch.tensor([0, 1])


def test_a_function_of_the_user() -> None:
    data = load(f"{__name__}:two_classes")
    assert (data.classes, data.shape) == (2, (1, 4, 4))
    for name, message in (
        ("nonsense", "must return four tensors"),
        ("flat", r"expected \(number, channels, height, width\)"),
        ("absent", "has no function 'absent'"),
        ("one_label", "test labels .* 1, for 2 images"),
    ):
        with pytest.raises(LabError, match=message):
            load(f"{__name__}:{name}")
    with pytest.raises(LabError, match="there is no module 'no_such_module'"):
        load("no_such_module:f")


def test_an_unknown_name_suggests_the_closest() -> None:
    with pytest.raises(LabError, match="did you mean 'mnist'"):
        load("mnits")
    with pytest.raises(LabError, match="--image-size"):
        load("digits", image_size=32)


def test_the_record_of_digits_matches_the_data() -> None:
    data = load("digits")
    assert len(data.train_labels) == DATA["digits"].train
    assert data.shape == DATA["digits"].shape
    assert len(data.train_labels) + len(data.test_labels) == 1797
    assert torch.equal(load("digits").train_images, data.train_images)


def test_every_record_has_a_title() -> None:
    assert data_title("cifar10") == "CIFAR-10"
    assert data_title("some/folder") == "some/folder"
    assert len({info.title for info in DATA.values()}) == len(DATA)


def test_training_data_is_normalized_and_test_data_by_the_same_numbers() -> None:
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


def test_images_too_large_for_floats_are_normalized_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    from flipout_lab.data import batches

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
    mean, deviation = (part.tolist() for part in channel_statistics(data.train_images))
    assert mean == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)
    assert deviation == pytest.approx([0.2470, 0.2435, 0.2616], abs=1e-4)


def test_real_photographs(real_photographs: Path) -> None:
    data = load(str(real_photographs), image_size=32)
    assert data.shape == (3, 32, 32)
    assert data.classes == 10
    assert data.train_labels.bincount().tolist() == [30] * 10
