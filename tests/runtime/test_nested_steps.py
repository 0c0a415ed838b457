"""An optimizer whose step calls that of its base: one step, however often torch runs the hooks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import flipout
from tests.helpers import assert_masked, batches, cross_entropy, mlp, sgd, train


class Derived(torch.optim.SGD):
    fails = False

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        if self.fails:
            raise RuntimeError("in the middle of a step")
        return loss


class Twice(Derived):
    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


@pytest.mark.parametrize("kind", [Derived, Twice])
@pytest.mark.parametrize("with_closure", [True, False])
def test_a_step_inside_a_step_is_one_step(kind: type[Derived], with_closure: bool) -> None:
    model, reference = mlp(), mlp()
    sgd(mlp()), Derived(mlp().parameters())  # from now on their steps run hooks, also if a subclass calls them
    optimizer = kind(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    plain = sgd(reference)
    pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.9, steps=20)
    untouched = flipout.PaperFlipOut(reference, plain, sparsity=0.9, steps=20)
    train(reference, plain, 20)
    for x, y in batches(20):

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            return loss

        if with_closure:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
        assert_masked(pruner)
    assert pruner.step == 20
    assert pruner.events == untouched.events
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), reference.parameters(), strict=True))


def test_an_error_inside_a_step_leaves_nothing_behind() -> None:
    model = mlp()
    optimizer = Derived(model.parameters(), lr=0.1)
    pruner = flipout.PaperFlipOut(model, optimizer, sparsity=0.9, steps=20)
    train(model, optimizer, 3)
    optimizer.fails = True
    with pytest.raises(RuntimeError, match="in the middle"):
        train(model, optimizer, 4, skip=3)
    optimizer.fails = False
    train(model, optimizer, 5, skip=4)
    assert pruner.step == 4
