"""Fingerprints: one number for each tensor, that changes with every change of it."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from flipout.fingerprints import fingerprints


@given(st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.bool, torch.int64]), st.integers(0, 99))
def test_a_fingerprint_changes_with_any_element_and_any_order(dtype: torch.dtype, place: int) -> None:
    tensor = torch.randn(10, 10, generator=torch.Generator().manual_seed(1)) * 9
    tensor = tensor > 0 if dtype == torch.bool else tensor.to(dtype)
    other = tensor.clone()
    other.view(-1)[place] = ~other.view(-1)[place] if dtype == torch.bool else other.view(-1)[place] + 1
    swapped = tensor.flip(0)
    assert len({*fingerprints([tensor, other, swapped, tensor.t()])}) == 4
    assert fingerprints([tensor.t().t(), tensor.clone()]) == fingerprints([tensor]) * 2


def test_fingerprints_of_masks_that_differ_in_two_places() -> None:
    masks = []
    for one in range(20):
        for other in range(one):
            mask = torch.ones(20, dtype=torch.bool)
            mask[[one, other]] = False
            masks.append(mask)
    assert len(set(fingerprints(masks))) == 190


def test_fingerprints_of_large_empty_and_complex_tensors() -> None:
    large = torch.zeros(3_000_000)
    other = large.clone()
    other[2_999_999] = 1
    empty = torch.zeros(0)
    assert fingerprints([large]) != fingerprints([other])
    assert len(set(fingerprints([empty, torch.zeros(2, dtype=torch.complex64), torch.ones(7)[1:]]))) == 3
    assert fingerprints([]) == []
