"""A pruner beside a model and an optimizer: neither is touched, and it goes without a trace."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from torch import Tensor, nn

import flipout
from tests.helpers import assert_masked, batches, convnet, cross_entropy, make, mlp, sgd, train


def test_the_model_is_not_touched() -> None:
    model = convnet()
    optimizer = sgd(model)
    modules = list(model.modules())
    identities = [id(parameter) for parameter in model.parameters()]
    keys = list(model.state_dict())
    hooks = [(m._forward_hooks, m._forward_pre_hooks, m._backward_hooks) for m in model.modules()]
    before = [list(vars(module)) for module in modules]
    pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.9, steps=20)
    train(model, optimizer, 20, shape=(1, 6, 6))
    assert list(model.modules()) == modules
    assert [id(parameter) for parameter in model.parameters()] == identities
    assert list(model.state_dict()) == keys
    assert [list(vars(module)) for module in modules] == before
    assert all(not any(kinds) for kinds in hooks)

    x, _ = next(batches(1, shape=(1, 6, 6)))
    model.eval()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), model(x))
        train(other, sgd(other), 3, shape=(1, 6, 6))  # a copy trains on its own, unpruned
        assert int((other.get_parameter("0.weight") != 0).sum()) > pruner.weights[0].kept


def test_a_compiled_model() -> None:
    plain, inner = mlp(), mlp()
    compiled = torch.compile(inner, backend="eager")
    assert isinstance(compiled, nn.Module)
    masks = []
    for model in (plain, compiled):
        optimizer = sgd(model)
        pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.9, steps=20)
        train(model, optimizer, 20)
        assert_masked(pruner)
        masks.append(pruner.masks)
    assert list(masks[0]) == list(masks[1]) == ["0.weight", "2.weight", "4.weight"]
    assert all(torch.equal(masks[0][name], masks[1][name]) for name in masks[0])


def test_moving_averages_of_the_weights() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.9, steps=20)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    train(model, optimizer, 20, after=lambda: average.update_parameters(model))
    assert not torch.equal(average.module.get_parameter("0.weight") != 0, pruner.masks["0.weight"])
    pruner.apply_to(average)
    assert sum(int(average.module.get_parameter(f"{i}.weight").count_nonzero()) for i in (0, 2, 4)) == 35
    with pytest.raises(ValueError, match="no parameter"):
        pruner.apply_to(nn.Linear(2, 2))


def test_frozen_tied_unused_and_empty_weights() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(12, 12, bias=False)
            self.again = nn.Linear(12, 12, bias=False)
            self.again.weight = self.first.weight
            self.frozen = nn.Linear(12, 12)
            self.frozen.weight.requires_grad_(False)
            self.unused = nn.Linear(5, 5)
            self.empty = nn.Linear(0, 3)
            self.head = nn.Linear(12, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.frozen(self.again(self.first(x).relu()).relu())
            return self.head(x) + self.empty(x[:, :0]).sum()  # type: ignore[no-any-return]

    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="zero-element"):
        model = Net()
    frozen = model.frozen.weight.detach().clone()
    optimizer = sgd(model)
    pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.5, steps=20, floor=1)
    assert list(pruner.masks) == ["first.weight", "unused.weight", "empty.weight", "head.weight"]
    assert pruner.prunable == 144 + 25 + 0 + 48
    train(model, optimizer, 20)
    assert_masked(pruner)
    assert pruner.nonzero == 108
    assert model.again.weight is model.first.weight
    assert torch.equal(model.frozen.weight, frozen)
    assert not pruner.statistics["flips"]["unused.weight"].any()
    assert "0 x" in str(pruner.summary()) or "3 x 0" in str(pruner.summary())


def test_a_tied_embedding_is_an_embedding() -> None:
    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(9, 6)
            self.body = nn.Linear(6, 6)
            self.head = nn.Linear(6, 9, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.body(self.embed(x)))
            return out

    model = Language()
    pruner = flipout.PaperFlipOut(model, sgd(model), sparsity=0.5, steps=10)
    assert list(pruner.masks) == ["body.weight"]
    pruner.remove()
    assert list(flipout.PaperFlipOut(model, sgd(model), sparsity=0.5, steps=10, include="embed").masks) == [
        "embed.weight"
    ]


def test_two_pruners_share_an_optimizer_if_not_their_weights() -> None:
    model = mlp()
    optimizer = sgd(model)
    one = flipout.PaperFlipOut(model, optimizer, sparsity=0.5, steps=20, include="0")
    other = flipout.GlobalMagnitude(model, optimizer, sparsity=0.75, steps=20, exclude="0")
    train(model, optimizer, 20)
    assert (one.nonzero, other.nonzero) == (96, 40)
    assert_masked(one)
    assert_masked(other)


def test_removed_it_leaves_the_zeros_and_the_loop_alone() -> None:
    model = mlp()
    optimizer = sgd(model)
    pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.9, steps=20)
    train(model, optimizer, 20)
    pruner.remove()
    pruner.remove()
    assert sum(int((weight.parameter != 0).sum()) for weight in pruner.weights) == 35
    train(model, optimizer, 2)
    assert sum(int((weight.parameter != 0).sum()) for weight in pruner.weights) > 35
    assert pruner.step == 20
    flipout.KeepZeros(model, optimizer)


def test_a_failed_construction_leaves_nothing_behind() -> None:
    model = mlp()
    optimizer = sgd(model)
    with pytest.raises(ValueError, match="p is -1"):
        flipout.PaperFlipOut(model, optimizer, sparsity=0.5, steps=10, p=-1)
    with pytest.raises(ValueError, match="batches is empty"):
        flipout.SNIP(model, optimizer, sparsity=0.5, steps=10, batches=[], loss_fn=cross_entropy)
    nan = lambda output, target: cross_entropy(output, target) * float("nan")  # noqa: E731
    with pytest.raises(FloatingPointError, match=r"0\.weight has NaN"):
        flipout.SNIP(model, optimizer, sparsity=0.5, steps=10, batches=batches(1), loss_fn=nan)
    with warnings.catch_warnings():
        warnings.simplefilter("error", flipout.DeadLayerWarning)
        at_once = flipout.OneShot(0.9, 10, at=0)
        with pytest.raises(flipout.DeadLayerWarning):
            flipout.Pruner(model, optimizer, criterion=lambda weight: weight * 0, schedule=at_once)
    assert not optimizer._optimizer_step_pre_hooks
    assert all((layer != 0).all() for layer in model.parameters())
    flipout.PaperFlipOut(model, optimizer, sparsity=0.5, steps=10)


def test_a_forgotten_pruner_does_not_stand_in_the_way() -> None:
    def fit(model: nn.Module, method: str) -> None:
        optimizer = sgd(model)
        make(method, model, optimizer)
        train(model, optimizer, 40)

    model = mlp()
    fit(model, "flipout")
    fit(model, "keep-zeros")
    assert sum(int(model.get_parameter(f"{i}.weight").count_nonzero()) for i in (0, 2, 4)) == 35
