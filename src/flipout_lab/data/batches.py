"""Batches from memory. The order, crops and flips of an epoch are a function of the seed and the step alone."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..errors import LabError
from .data_catalogue import DATA, Data

FLOAT_LIMIT = 1 << 30  # bytes; larger sets stay uint8 and are normalized batch by batch


class Images:
    """Images and labels on a device, returned in normalized batches."""

    def __init__(self, images: Tensor, labels: Tensor, mean: Tensor, deviation: Tensor, device: torch.device) -> None:
        self.mean, self.deviation = (part.view(1, -1, 1, 1).to(device) for part in (mean, deviation))
        self.labels = labels.to(device)
        self.images = images.to(device)
        if images.is_floating_point() or images.numel() * 4 <= FLOAT_LIMIT:
            self.images = self._normalize(self.images)
        self.normalized = self.images.is_floating_point()

    def __len__(self) -> int:
        return len(self.labels)

    def _normalize(self, images: Tensor) -> Tensor:
        if images.is_floating_point():
            return images.float()
        return (images.float() / 255 - self.mean) / self.deviation

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        images = self.images[index]
        return channels_last(images if self.normalized else self._normalize(images)), self.labels[index]

    def in_order(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Every image once, in the order of the data set."""
        for start in range(0, len(self), size):
            yield self.take(torch.arange(start, min(start + size, len(self)), device=self.labels.device))

    def shuffled(self, size: int, *, seed: int, epoch: int, skip: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Every image once, in an order that depends on seed and epoch. The first `skip` batches are left out."""
        generator = torch.Generator().manual_seed(_mix(seed, epoch))
        order = torch.randperm(len(self), generator=generator).to(self.labels.device)
        for index in order.split(size)[skip:]:  # type: ignore[no-untyped-call]
            yield self.take(index)


def prepare(data: Data, device: torch.device, *, validate: bool) -> tuple[Images, Images]:
    """The training images, and the test images or, with `validate`, a held-out part of the training images.

    The held-out part has 10,000 images of CIFAR-10 and 2,000 of Imagenette, as in the paper. For other data sets, and
    for sets that are too small, it is a tenth. It is the same for every seed, so that settings are always compared on
    the same images.
    """
    images, labels = data.train_images, data.train_labels
    held_images, held_labels = data.test_images, data.test_labels
    if validate:
        size = validation_size(data.name, len(labels))
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
        held_images, held_labels = images[order[:size]], labels[order[:size]]
        images, labels = images[order[size:]], labels[order[size:]]
    for what, found in (("training", labels), ("validation" if validate else "test", held_labels)):
        if not len(found):
            advice = "add some" if what == "training" else "add some, or use --validate"
            raise LabError(f"{data.name} has no {what} images; {advice}")
    mean, deviation = channel_statistics(images)
    return tuple(  # type: ignore[return-value]
        Images(*part, mean, deviation, device) for part in ((images, labels), (held_images, held_labels))
    )


def validation_size(name: str, train: int) -> int:
    """How many training images `--validate` holds out."""
    size = DATA[name].validation if name in DATA else None
    return size if size is not None and 2 * size <= train else max(1, train // 10)


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel on a scale of 0 to 1; 0 and 1 for images that are floats."""
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
    """Mirror about half of the images and shift each by up to `crop` pixels with zero padding, each independently."""
    generator = torch.Generator().manual_seed(_mix(seed, step, 1))
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
    return (
        images.permute(0, 2, 3, 1)[image, row, column].permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
    )


def channels_last(images: Tensor) -> Tensor:
    """Images with their channels next to each other in memory, which convolutions are faster with."""
    return images.contiguous(memory_format=torch.channels_last if images.shape[1] > 1 else torch.contiguous_format)


def _mix(*numbers: int) -> int:
    """Hash several numbers into one seed."""
    mixed = 0
    for number in numbers:
        mixed = (mixed ^ number) * 0x9E3779B97F4A7C15 % (1 << 63)
        mixed ^= mixed >> 29
    return mixed
