"""The kernels, in a state that every test finds the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from flipout.kernels.library import find_kernels


@pytest.fixture(autouse=True)
def _same_kernels() -> Iterator[None]:
    if (kernels := find_kernels()) is None:
        pytest.skip("the kernels were not built: there is no C compiler")
    threads = torch.get_num_threads()
    yield
    kernels.choose_instructions(kernels.instructions)
    torch.set_num_threads(threads)
