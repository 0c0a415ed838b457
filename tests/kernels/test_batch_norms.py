"""Batch norms in training compute with kernels while a layer is sparse, and give what torch gives."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from flipout.kernels import batch_norms
from flipout.kernels.batch_norms import BatchNormComputation
from flipout.kernels.sparse_modules import exchange_class

from .networks import batch, pruned, step

SHAPES = st.one_of(
    st.tuples(st.integers(1, 9), st.integers(1, 6), st.integers(4, 9), st.integers(4, 9)),
    st.tuples(st.integers(1, 9), st.integers(1, 6), st.integers(16, 70)),
    st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1000, 2100)),
)
OPTIONS = st.fixed_dictionaries(
    {"affine": st.booleans(), "momentum": st.sampled_from([0.1, 1.0, None]), "track_running_stats": st.booleans()}
)


def norms(shape: tuple[int, ...], **options: Any) -> tuple[Any, Any]:
    """A batch norm of torch, and a copy that computes with the kernels."""
    plain: Any = (nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d)(shape[1], **options)
    if plain.weight is not None:
        nn.init.uniform_(plain.weight, -2, 2)
        nn.init.uniform_(plain.bias, -2, 2)
    fast, computation = copy.deepcopy(plain), BatchNormComputation()
    computation.active = True
    exchange_class(fast, computation)
    return plain, fast


def uses_kernels(output: Tensor) -> bool:
    assert output.grad_fn is not None
    return "BatchNormFunction" in output.grad_fn.name()


@given(shape=SHAPES, options=OPTIONS, seed=st.integers(0, 1000), offset=st.sampled_from([0.0, 100.0]))
def test_outputs_gradients_and_statistics_are_those_of_torch(
    shape: tuple[int, ...], options: dict[str, Any], seed: int, offset: float
) -> None:
    torch.manual_seed(seed)
    plain, fast = norms(shape, **options)
    for _ in range(2):
        x, gradient = torch.randn(shape) * 3 + offset, torch.randn(shape)
        inputs = [x.clone().requires_grad_() for _ in range(2)]
        outputs = [
            norm(each) for norm, each in zip((plain.double(), fast), (inputs[0].double(), inputs[1]), strict=True)
        ]
        assert uses_kernels(outputs[1])
        for output in outputs:
            output.backward(gradient.to(output.dtype))
        torch.testing.assert_close(outputs[1].double(), outputs[0], rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(inputs[1].grad, inputs[0].grad, rtol=1e-3, atol=1e-3)
    for expected, found in zip(plain.parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(found.grad.double(), expected.grad, rtol=1e-3, atol=1e-2)
    for name, expected in plain.named_buffers():
        torch.testing.assert_close(fast.get_buffer(name).to(expected.dtype), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("deviation", [0.0, 0.01, 1.0])
def test_large_images_with_a_large_mean_are_normalized_precisely(deviation: float) -> None:
    torch.manual_seed(0)
    shape = 2, 1, 256, 256
    plain, fast = norms(shape)
    x = torch.randn(shape) * deviation + 1000.1
    expected, found = plain.double()(x.double()), fast(x)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=0.01)
    torch.testing.assert_close(fast.running_mean.double(), plain.running_mean, rtol=1e-6, atol=0)
    for output in (expected, found):
        output.backward(torch.full_like(output, 0.1))
    assert fast.bias.grad.double() == pytest.approx(plain.bias.grad, rel=1e-6)


def test_the_number_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_norms, "WORK_OF_A_THREAD", 1)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            torch.manual_seed(0)
            _, norm = norms((7, 5, 6, 6))
            x = torch.randn(7, 5, 6, 6, requires_grad=True)
            output = norm(x)
            output.backward(torch.randn(7, 5, 6, 6))
            found.append([output, x.grad, norm.weight.grad, norm.running_var])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_they_compute_with_kernels_while_a_layer_is_sparse() -> None:
    model, optimizer, pruner, kernels = pruned(True)
    assert not uses_kernels(model.norm(torch.randn(4, 12, 9, 9)))
    for number in range(12):
        step(model, optimizer, number)
    assert kernels.layers
    x = torch.randn(4, 12, 9, 9)
    assert uses_kernels(model.norm(x))
    assert torch.equal(model.norm.eval()(x), nn.BatchNorm2d.forward(model.norm, x))
    for same in (copy.deepcopy(model.norm), pickle.loads(pickle.dumps(model.norm))):
        assert type(same) is nn.BatchNorm2d
        assert all(torch.equal(a, b) for a, b in zip(same.buffers(), model.norm.buffers(), strict=True))
    pruner.remove()
    assert type(model.norm) is nn.BatchNorm2d


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(4, 3, 6, 6).contiguous(memory_format=torch.channels_last),
        torch.randn(4, 3, 2, 2),
        torch.randn(4, 3, 6, 6, dtype=torch.float64),
        torch.randn(4, 3, 6, 12)[..., ::2],
    ],
    ids=["channels last", "few pixels", "double", "strides"],
)
def test_other_inputs_are_left_to_torch(x: Tensor) -> None:
    plain, fast = (norm.to(x.dtype) for norm in norms(tuple(x.shape)))
    output = fast(x)
    assert not uses_kernels(output)
    assert torch.equal(output, plain(x))


def test_errors_are_those_of_torch() -> None:
    with pytest.raises((IndexError, RuntimeError)):
        norms((4, 0, 6, 6))[1](torch.randn(4, 0, 6, 6))
    _, norm = norms((4, 3, 6, 6))
    with pytest.raises(ValueError, match="4D"):
        norm(torch.randn(4, 3, 40))
    with pytest.raises(RuntimeError):
        norm(torch.randn(4, 5, 6, 6))


def test_not_a_number_spreads_over_its_channel() -> None:
    _, norm = norms((2, 2, 5, 5))
    x = torch.randn(2, 2, 5, 5)
    x[0, 1, 2, 2] = float("nan")
    assert norm(x).isnan().all((0, 2, 3)).tolist() == [False, True]


def test_second_derivatives_are_refused() -> None:
    _, norm = norms((2, 3, 5, 5))
    x = torch.randn(2, 3, 5, 5, requires_grad=True)
    with pytest.raises(RuntimeError, match="create_graph"):
        torch.autograd.grad(norm(x).square().sum(), x, create_graph=True)


def test_a_resumed_training_has_the_same_bits() -> None:
    runs = []
    for stop in (12, 8):
        model, optimizer, pruner, _ = pruned(True)
        for number in range(stop):
            step(model, optimizer, number)
        if stop < 12:
            state = copy.deepcopy((model.state_dict(), optimizer.state_dict(), pruner.state_dict()))
            model, optimizer, pruner, _ = pruned(True, seed=1)
            for each, content in zip((model, optimizer, pruner), state, strict=True):
                each.load_state_dict(content)
            for number in range(stop, 12):
                step(model, optimizer, number)
        runs.append(model)
        assert uses_kernels(model.norm(model.first(batch(0)[0])))
    assert all(torch.equal(a, b) for a, b in zip(*(run.parameters() for run in runs), strict=True))
