"""Numbers are read from a device together: every transfer makes the program wait for the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def read_integers(numbers: Sequence[Tensor]) -> list[int]:
    """The values of tensors without dimensions, with one transfer from each device."""
    values = [0] * len(numbers)
    places: dict[torch.device, list[int]] = {}
    for place, number in enumerate(numbers):
        places.setdefault(number.device, []).append(place)
    for device, here in places.items():
        if device.type == "cpu":
            read = [int(numbers[place]) for place in here]
        else:
            read = [int(value) for value in torch.stack([numbers[place].long() for place in here]).tolist()]
        for place, value in zip(here, read, strict=True):
            values[place] = value
    return values


def counts(marks: Sequence[Tensor]) -> list[int]:
    """The number of marked elements of each tensor, those that are not 0, with one transfer from each device."""
    return read_integers([torch.count_nonzero(mark) for mark in marks])
