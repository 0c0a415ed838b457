"""The digits data set that is included in scikit-learn."""

from __future__ import annotations

from pathlib import Path

import torch

from .data_types import Arrays

TRAIN = 1437


def read_digits(home: Path, image_size: int | None) -> Arrays:
    """The first 1,437 images of a fixed random order for training, the other 360 for testing."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8)[order] * (255 / 16)
    y = torch.tensor(labels)[order]
    return x[:TRAIN].byte(), y[:TRAIN], x[TRAIN:].byte(), y[TRAIN:]
