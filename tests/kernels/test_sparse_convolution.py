"""The kernels against torch."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from flipout.kernels import sparse_convolution
from flipout.kernels.geometry import Convolution
from flipout.kernels.library import kernels
from flipout.kernels.sparse_convolution import convolve, convolve_backward
from flipout.kernels.sparse_pattern import SparsePattern

from .cases import Case, convolutions, pairs

INSTRUCTIONS = ("avx512", "avx2", "plain")


def sparse(case: Case, *, clip: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the gradient of the images, and that of the weight, by the kernels."""
    pattern = SparsePattern(case.weight != 0)
    values = pattern.values(case.weight)
    assert values is not None
    output = convolve(case.images, pattern, values, case.convolution, case.bias, clip=clip)
    gradients = convolve_backward(
        case.gradient, case.images, pattern, values, case.convolution, of_images=True, of_weight=True
    )
    assert gradients[0] is not None
    assert gradients[1] is not None
    return output, gradients[0], gradients[1]


def check(case: Case) -> None:
    for found, expected in zip(sparse(case), case.dense(), strict=True):
        largest = float(expected.abs().max()) if expected.numel() else 1.0
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * max(1.0, largest))


@pytest.fixture
def _small_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wake threads for any work."""
    monkeypatch.setattr(sparse_convolution, "WORK_OF_A_THREAD", 1)


@pytest.mark.usefixtures("_small_work")
@settings(max_examples=200)
@given(convolutions, st.integers(0, 40), st.floats(0, 1), st.sampled_from((1, 1, 1, 3)), st.sampled_from(INSTRUCTIONS))
def test_convolutions_of_any_shape_equal_those_of_torch(
    convolution: Convolution, images: int, density: float, threads: int, instructions: str
) -> None:
    kernels().choose_instructions(instructions)  # a machine without them uses those before
    torch.set_num_threads(threads)
    check(Case.draw(convolution, images, density))


@settings(max_examples=50)
@given(pairs(1, 300), st.integers(0, 600), st.floats(0, 1))
def test_linear_layers_equal_those_of_torch(channels: tuple[int, int], rows: int, density: float) -> None:
    check(Case.draw(Convolution(channels, (1, 1)), rows, density))


@pytest.mark.parametrize("images", [1, 3, 8, 17])
@pytest.mark.parametrize("side", [1, 2, 4, 8, 16, 33, 70])
@pytest.mark.parametrize("stride", [1, 2])
def test_the_usual_layers_equal_those_of_torch(images: int, side: int, stride: int) -> None:
    check(Case.draw(Convolution((20, 24), (side, side), (3, 3), (stride, stride), (1, 1), (1, 1)), images, 0.1))


def test_a_negative_output_can_be_clipped_as_relu_does() -> None:
    case = Case.draw(Convolution((4, 5), (6, 7), (3, 3)), 2, 0.5)
    case.images[0, 0, 2, 2] = math.nan
    clipped, unclipped = sparse(case, clip=True)[0], sparse(case)[0]
    assert unclipped.isnan().any()
    torch.testing.assert_close(clipped, functional.relu(unclipped), rtol=0, atol=0, equal_nan=True)


@settings(max_examples=50)
@given(convolutions, st.integers(0, 20), st.booleans())
def test_a_tensor_can_be_added_to_the_output(convolution: Convolution, images: int, clip: bool) -> None:
    case = Case.draw(convolution, images, 0.5)
    pattern = SparsePattern(case.weight != 0)
    values = pattern.values(case.weight)
    assert values is not None
    found = convolve(case.images, pattern, values, convolution, case.bias, addend=case.gradient, clip=clip)
    expected = case.dense()[0] + case.gradient
    torch.testing.assert_close(found, functional.relu(expected) if clip else expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("_small_work")
@pytest.mark.parametrize("images", [2, 3, 37])
def test_the_same_number_of_threads_gives_the_same_bits(images: int) -> None:
    torch.set_num_threads(3)
    case = Case.draw(Convolution((9, 8), (9, 9), (3, 3), (1, 1), (1, 1), (1, 1)), images, 0.3)
    first = sparse(case)
    for _ in range(5):
        assert all(torch.equal(*both) for both in zip(first, sparse(case), strict=True))


@pytest.mark.usefixtures("_small_work")
@pytest.mark.parametrize("images", [1, 9])
def test_threads_that_a_call_starts_compute_the_same(images: int) -> None:
    torch.set_num_threads(2)
    case = Case.draw(Convolution((9, 8), (12, 12), (3, 3), (1, 1), (1, 1), (1, 1)), images, 0.3)
    expected = sparse(case)
    kernels().use_threads_of_torch(False)
    try:
        assert all(torch.equal(*both) for both in zip(expected, sparse(case), strict=True))
    finally:
        kernels().use_threads_of_torch(True)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("column", [0, 3, 6])
@pytest.mark.parametrize("stride", [1, 2])
def test_what_is_not_finite_in_images_spreads_as_in_a_dense_convolution(value: float, column: int, stride: int) -> None:
    """Torch computes the outputs of the kept weights here: there is one for each pair of channels."""
    case = Case.draw(Convolution((1, 3), (5, 7), (3, 3), (stride, stride), (1, 1), (1, 1)), 2, 1.0)
    case.images[1, 0, 2, column] = value
    for found, dense in zip(sparse(case), case.dense(), strict=True):
        assert torch.equal(found.isnan(), dense.isnan())
        assert torch.equal(found.isinf(), dense.isinf())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_in_gradients_spreads_as_in_a_dense_convolution(value: float) -> None:
    case = Case.draw(Convolution((2, 1), (5, 7), (3, 3), (1, 1), (1, 1), (1, 1)), 2, 1.0)
    case.gradient[1, 0, 0, 3] = value
    for found, dense in zip(sparse(case)[1:], case.dense()[1:], strict=True):
        assert torch.equal(found.isfinite(), dense.isfinite())


def test_a_pruned_weight_never_meets_an_infinite_pixel() -> None:
    case = Case.draw(Convolution((2, 1), (4, 4), (3, 3)), 1, 1.0)
    case.weight[:, 1] = 0
    case.images[0, 1] = math.inf
    output, images, weight = sparse(case)
    assert output.isfinite().all()
    assert images.isfinite().all()
    assert weight.isfinite().all()


def test_weights_that_are_not_finite_are_reported() -> None:
    weight = torch.tensor([[1.0, math.inf, 0.0], [0.0, 2.0, math.nan]])
    values = SparsePattern(torch.tensor([[True, False, True], [False, True, False]])).values(weight)
    assert values is not None
    assert values.tolist() == [1, 0, 2]
    assert SparsePattern(weight != 0).values(weight) is None


def test_gradients_that_are_not_asked_for_are_not_computed() -> None:
    case = Case.draw(Convolution((3, 3), (5, 5), (3, 3)), 4, 0.5)
    pattern = SparsePattern(case.weight != 0)
    values = pattern.values(case.weight)
    assert values is not None
    both = sparse(case)[1:]
    arguments = case.gradient, case.images, pattern, values, case.convolution
    images, nothing = convolve_backward(*arguments, of_images=True, of_weight=False)
    assert nothing is None
    assert images is not None
    assert torch.equal(images, both[0])
    nothing, dense = convolve_backward(*arguments, of_images=False, of_weight=True)
    assert nothing is None
    assert dense is not None
    assert torch.equal(dense, both[1])


def test_an_unknown_instruction_set_is_not_chosen() -> None:
    assert not kernels().choose_instructions("quantum")
    assert kernels().choose_instructions("plain")
