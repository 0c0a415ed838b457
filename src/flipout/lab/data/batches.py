"""Batches from memory: the order, the crops and the flips of an epoch are computed from the seed, not drawn."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from . import Data

FLOAT_LIMIT = 1 << 30


class Images:
    """Images and labels on a device, given out normalised, in batches."""

    def __init__(self, images: Tensor, labels: Tensor, mean: Tensor, deviation: Tensor, device: torch.device) -> None:
        self.mean, self.deviation = (part.view(1, -1, 1, 1).to(device) for part in (mean, deviation))
        self.labels = labels.to(device)
        self.images = images.to(device)
        if images.is_floating_point() or images.numel() * 4 <= FLOAT_LIMIT:
            self.images = self._normalised(self.images)  # once and for all, where there is room
        self.done = self.images.is_floating_point()

    def __len__(self) -> int:
        return len(self.labels)

    def _normalised(self, images: Tensor) -> Tensor:
        if images.is_floating_point():
            return images.float()
        return (images.float() / 255 - self.mean) / self.deviation

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        images = self.images[index]
        return images if self.done else self._normalised(images), self.labels[index]

    def in_order(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Every image once, in the order they are in."""
        for start in range(0, len(self), size):
            yield self.take(torch.arange(start, min(start + size, len(self)), device=self.labels.device))

    def shuffled(self, size: int, *, seed: int, epoch: int, skip: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Every image once, in the order of this seed and epoch; the first `skip` batches are left out."""
        generator = torch.Generator().manual_seed(_mixed(seed, epoch))
        order = torch.randperm(len(self), generator=generator).to(self.labels.device)
        for index in order.split(size)[skip:]:  # type: ignore[no-untyped-call]
            yield self.take(index)


def prepare(data: Data, device: torch.device, *, validate: bool, seed: int = 0) -> tuple[Images, Images]:
    """The images to train on and those to measure on: the test set, or with `validate` a part of the training set.

    The part is 10,000 of CIFAR-10 and 2,000 of Imagenette, as in the paper, and a tenth elsewhere or where there are
    too few. It is the same for every seed, so that settings are chosen on one and the same set.
    """
    images, labels = data.train_images, data.train_labels
    held_images, held_labels = data.test_images, data.test_labels
    if validate:
        size = validation_size(data.name, len(labels))
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
        held_images, held_labels = images[order[:size]], labels[order[:size]]
        images, labels = images[order[size:]], labels[order[size:]]
    mean, deviation = statistics(images)
    return tuple(  # type: ignore[return-value]
        Images(*part, mean, deviation, device) for part in ((images, labels), (held_images, held_labels))
    )


def validation_size(name: str, train: int) -> int:
    """How many training images are held out to validate on."""
    from . import DATA

    size = DATA[name].validation if name in DATA else None
    return size if size is not None and 2 * size <= train else max(1, train // 10)


def statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each channel on a scale of 0 to 1; of images that are floats already, 0 and 1."""
    channels = images.shape[1]
    if images.is_floating_point():
        return torch.zeros(channels), torch.ones(channels)
    mean, square = torch.zeros(channels, dtype=torch.float64), torch.zeros(channels, dtype=torch.float64)
    for part in images.split(4096):  # type: ignore[no-untyped-call]
        pixels = part.double() / 255
        mean += pixels.sum((0, 2, 3))
        square += pixels.square().sum((0, 2, 3))
    count = images.numel() / channels
    mean /= count
    deviation = (square / count - mean.square()).clamp_min(0).sqrt().clamp_min(1e-3)
    return mean.float(), deviation.float()


def augment(images: Tensor, *, flip: bool, crop: int, seed: int, step: int) -> Tensor:
    """Mirrors half of the images and moves each by up to `crop` pixels, filling up with zeros; each on its own."""
    generator = torch.Generator().manual_seed(_mixed(seed, step, 1))
    number, _, height, width = images.shape
    device = images.device
    columns = torch.arange(width).expand(number, width)
    if flip:
        mirrored = torch.rand(number, 1, generator=generator) < 0.5
        columns = torch.where(mirrored, width - 1 - columns, columns)
    rows = torch.arange(height).expand(number, height)
    if crop:
        images = torch.nn.functional.pad(images, [crop] * 4)
        moves = torch.randint(2 * crop + 1, (2, number, 1), generator=generator)
        rows, columns = rows + moves[0], columns + moves[1]
    image = torch.arange(number, device=device).view(-1, 1, 1)
    row, column = rows.to(device).unsqueeze(2), columns.to(device).unsqueeze(1)
    return images.permute(0, 2, 3, 1)[image, row, column].permute(0, 3, 1, 2).contiguous()


def _mixed(*numbers: int) -> int:
    """One seed of several numbers, none of which shows through."""
    mixed = 0
    for number in numbers:
        mixed = (mixed ^ number) * 0x9E3779B97F4A7C15 % (1 << 63)
        mixed ^= mixed >> 29
    return mixed
