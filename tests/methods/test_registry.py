"""The registry: one record for each method, from its class alone."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
import torch
from torch import nn

import flipout
from flipout.methods import registry
from flipout.methods.options import InSteps
from flipout.methods.registry import Method, Option, Registry, argument_texts
from tests.helpers import mlp, sgd, train


def test_every_method_is_complete() -> None:
    for name, record in flipout.METHODS.items():
        assert record.name == name
        assert record.title
        assert record.about
        assert record.colour.startswith("#")
        assert all(option.about for option in record.options.values()), name
    colours = [record.colour for record in flipout.METHODS.values()]
    assert len(set(colours)) == len(colours)
    assert next(iter(flipout.METHODS)) == "flipout"


def test_options_come_from_the_constructor() -> None:
    hoyer = flipout.METHODS["hoyer-square"]
    assert hoyer.options["lambda_"] == Option("lambda_", float, 1e-4, "weight of the penalty in the loss.")
    assert hoyer.options["lambda_"].key == "lambda"
    assert list(hoyer.options) == ["lambda_", "threshold"]  # fine_tune belongs to the loop
    assert not hoyer.needs_sparsity
    assert hoyer.needs == flipout.LoopNeeds(penalty=True, further_epochs=150 / 350)
    lottery = flipout.METHODS["lottery"]
    assert lottery.options["rewind_to"].annotation == Annotated[int | None, InSteps]
    assert lottery.needs.restarts_learning_rate
    assert flipout.METHODS["flipout"].takes_schedule
    assert not lottery.takes_schedule
    assert flipout.METHODS["snip"].needs.batches == 10
    assert "noise" in flipout.METHODS["flipout"].common
    assert "noise" not in flipout.METHODS["deep-r"].common
    assert "floor" not in flipout.METHODS["dense"].common


class Halving(flipout.Pruner):
    """Prunes by magnitude.

    Args:
        model: the network.
        kind: what to do, in
            two lines.
        times: how often.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sparsity: float,
        steps: int,
        kind: Literal["a", "b"] = "a",
        times: int = 2,
        **options: Any,
    ) -> None:
        schedule = flipout.Geometric(sparsity, steps, prunings=times)
        super().__init__(model, optimizer, criterion=flipout.criteria.magnitude, schedule=schedule, **options)


def test_a_class_without_a_declaration_has_a_record() -> None:
    record = flipout.METHODS.record_of(Halving, "mine:Halving")
    assert (record.name, record.title, record.about) == ("mine:Halving", "Halving", "Prunes by magnitude")
    assert record.colour in registry.PALETTE
    assert record.options["kind"] == Option("kind", Literal["a", "b"], "a", "what to do, in two lines.")
    assert {"scope", "floor", "noise"} <= record.common
    model = mlp()
    optimizer = sgd(model)
    pruner = record(model, optimizer, sparsity=0.5, steps=10, times=3)
    train(model, optimizer, 10)
    assert pruner.nonzero == 176


def test_argument_texts_stop_at_the_end_of_the_section() -> None:
    texts = argument_texts(Halving)
    assert texts["kind"] == "what to do, in two lines."
    assert texts["times"] == "how often."
    assert texts["seed"].startswith("the seed of the statistic")  # of the base
    assert argument_texts(int) == {}


def test_a_name_belongs_to_one_class() -> None:
    with pytest.raises(ValueError, match=r"'flipout' .*FlipOut"):
        flipout.register("flipout", title="Mine", about="mine")(Halving)
    assert flipout.METHODS["flipout"].cls is flipout.FlipOut


class Point:
    """An installed entry point."""

    name = "halving"

    def load(self) -> type[flipout.Pruner]:
        return Halving


class Broken(Point):
    """One of a package that does not work here."""

    name = "broken"

    def load(self) -> type[flipout.Pruner]:
        raise ImportError("no module named nowhere")


def test_installed_packages_add_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = []

    def entry_points(group: str) -> list[Point]:
        groups.append(group)
        return [Broken(), Point()]

    monkeypatch.setattr(registry, "entry_points", entry_points)
    methods = Registry()
    methods.add(Method("own", flipout.Random, "Own", "about", "#000000"))
    assert methods["own"].title == "Own"
    assert groups == []  # nothing is imported for a method that is known
    with pytest.warns(UserWarning, match="'broken' .*no module named nowhere"):
        assert methods["halving"].cls is Halving
    assert list(methods) == ["own", "halving"]
    assert groups == ["flipout.methods"]
    with pytest.raises(KeyError):
        methods["another"]


class MyHoyer(flipout.HoyerSquare):
    """Hoyer-Square with something more.

    Args:
        more: how much more.
    """

    def __init__(self, net: nn.Module, opt: torch.optim.Optimizer, *, more: float = 1.0, **options: Any) -> None:
        super().__init__(net, opt, **options)


def test_a_subclass_keeps_what_its_base_takes_and_needs() -> None:
    record = flipout.METHODS.record_of(MyHoyer, "mine:MyHoyer")
    assert record.needs == flipout.METHODS["hoyer-square"].needs
    assert list(record.options) == ["more", "lambda_", "threshold"]
    assert record.options["lambda_"].about == "weight of the penalty in the loss."
    assert not record.needs_sparsity
    assert "steps" in record.parameters
    assert "noise" in record.common


def test_a_cell_that_is_run_again_replaces_its_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "METHODS", methods := Registry())
    for _ in range(2):
        again = type("Again", (Halving,), {"__module__": "notebook"})
        registry.register("again", title="Again", about="again")(again)
    assert methods._records["again"].cls is again
