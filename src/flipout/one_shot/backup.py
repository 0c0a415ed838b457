"""What pruning is about to change, to restore it if something fails."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

IN_MEMORY = 1 << 23
"""Up to this many bytes are kept in memory; more go to a temporary file, so that a large model is there only once."""


@contextmanager
def unchanged_on_failure(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Restore tensors if an exception, or an interruption, leaves the block."""
    with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY) as file:
        torch.save([tensor.detach() for tensor in tensors], file)
        try:
            yield
        except BaseException:
            file.seek(0)
            with torch.no_grad():
                for tensor, saved in zip(tensors, torch.load(file, weights_only=True), strict=True):
                    tensor.copy_(saved)
            raise
