"""Recipes, overrides, options of methods, and invalid settings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import flipout
from flipout.events import Event
from flipout_lab import LabError, build, make_settings
from flipout_lab.runs.method_options import options_of
from flipout_lab.runs.pruning import attach, learning_rate, make_optimizer, schedule
from flipout_lab.runs.settings import Settings, fields, settings_class, validated
from tests.helpers import mlp, sgd


def test_the_papers_recipe_is_section_4_1() -> None:
    paper = make_settings("paper", model="resnet18", sparsity=0.999)
    assert (paper.optimizer, paper.learning_rate, paper.momentum, paper.weight_decay) == ("sgd", 0.1, 0.9, 5e-4)
    assert (paper.batch_size, paper.epochs, paper.option("schedule"), paper.data) == (128, 350, "paper", "cifar10")
    default = make_settings(model="resnet18", method="flipout-paper")
    ours = {**default.as_dict(), "schedule": "paper", "epochs": 350, "sparsity": 0.999}
    assert ours == paper.as_dict()


@pytest.mark.parametrize(("epochs", "first", "second"), [(350, 150, 250), (35, 15, 25), (7, 3, 5)])
def test_milestones_scale_with_the_epochs(epochs: int, first: int, second: int) -> None:
    settings = make_settings("paper", epochs=epochs, method="dense")
    model = mlp()
    pruner = flipout.Dense(model, sgd(model))
    rates = [learning_rate(settings, pruner, step, 10) for step in range(epochs * 10)]
    assert [i for i in range(1, len(rates)) if rates[i] != rates[i - 1]] == [first * 10, second * 10]
    assert rates[-1] == pytest.approx(0.001)


def test_lottery_starts_the_learning_rate_over_in_each_round() -> None:
    settings = make_settings(method="lottery", rounds=3, epochs=40)
    model = mlp()
    pruner = flipout.Lottery(model, sgd(model), sparsity=0.9, steps=400, rounds=3)
    for done in range(4):
        start = done * 100
        assert learning_rate(settings, pruner, start, 10) == 0.1
        assert learning_rate(settings, pruner, start + 99, 10) == pytest.approx(0.001)
        pruner.events.append(Event(start + 100, 0.5, 1, {}))


def test_a_users_recipe_and_overrides(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text('epochs = 5\nmodel = "lenet-5"\nlambda = 0.5\nmethod = "hoyer-square"\nmilestones = [3]\n')
    settings = make_settings(str(recipe), epochs="7")
    assert (settings.epochs, settings.model, settings.option("lambda"), settings.milestones) == (
        7,
        "lenet-5",
        0.5,
        (3,),
    )
    assert settings.total_epochs == 10
    assert validated(settings.as_dict()) == settings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epoch": 3}, "did you mean 'epochs'"),
        ({"modell": 3}, "did you mean 'model'"),
        ({"epochs": 0}, "--epochs is 0"),
        ({"sparsity": 1.0}, "--sparsity is 1.0"),
        ({"learning_rate": "fast"}, "--learning-rate is 'fast'"),
        ({"momentum": 1.5}, "--momentum"),
        ({"schedule": "papr"}, "--schedule is 'papr'"),
        ({"method": "flip-out"}, "did you mean 'flipout'"),
        ({"model": "resnet"}, "did you mean 'resnet18'"),
        ({"data": "cifar-10"}, "did you mean 'cifar10'"),
        ({"method": "magnitude", "p": 2}, "magnitude takes no --p"),
        ({"method": "deep-r", "noise": 1}, "deep-r takes no --noise"),
        ({"method": "snip", "schedule": "paper"}, "snip takes no --schedule"),
        ({"sparsity": None}, "flipout needs a sparsity"),
    ],
)
def test_invalid_settings_are_explained(values: dict[str, Any], message: str) -> None:
    with pytest.raises(LabError, match=message):
        make_settings(**values)


def test_invalid_recipes(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="did you mean 'paper'"):
        make_settings("papper")
    (tmp_path / "a.toml").write_text("epochs = ")
    with pytest.raises(LabError, match="is not valid TOML"):
        make_settings(str(tmp_path / "a.toml"))
    (tmp_path / "b.toml").write_text("epochz = 3")
    with pytest.raises(LabError, match=r"b\.toml: 'epochz'; did you mean 'epochs'"):
        make_settings(str(tmp_path / "b.toml"))


def test_the_name_of_a_run() -> None:
    one, other = make_settings(), make_settings(learning_rate=0.2)
    assert one.folder_name().startswith("digits-mlp-flipout-0.95-seed0-")
    assert one.folder_name() != other.folder_name()
    assert make_settings().folder_name() == one.folder_name()
    assert "/" not in make_settings(model="a.b:c").folder_name()


def test_every_method_is_known_to_the_lab() -> None:
    for record in flipout.METHODS.values():
        assert not options_of(record).keys() & fields().keys()
        make_settings(method=record.name)


def pruner_of(**options: Any) -> flipout.Pruner:
    settings = make_settings(**{"epochs": 20, **options})
    model = build("mlp", (1, 8, 8))
    return attach(settings, model, make_optimizer(settings, model), 12, lambda n: [])


def values(pruner: flipout.Pruner, names: Iterable[str]) -> dict[str, Any]:
    """What a pruner or its form has under these names."""
    return {name: getattr(pruner if hasattr(pruner, name) else pruner.form, name) for name in names}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"p": 1, "noise": 0.01, "relative_to": "weight"}, {"noise": flipout.GradientNoise(0.01, "weight")}),
        ({"method": "magnitude", "noise": 1}, {"noise": flipout.GradientNoise(1.0)}),
        ({"method": "magnitude", "scope": "layer", "floor": 3}, {"scope": "layer", "floor": 3}),
        ({"method": "deep-r", "l1": 0.5, "temperature": 0.25}, {"l1": 0.5, "temperature": 0.25}),
        ({"method": "hoyer-square", "lambda": 0.5, "sparsity": None}, {"lambda_": 0.5}),
        ({"method": "lottery", "rounds": 2, "rewind_to": 2}, {"rewind_to": 24}),
        ({"method": "lottery", "rewind_to": -1}, {"rewind_to": None}),
        ({"method": "rigl", "share": 0.2, "distribution": "uniform"}, {"share": 0.2, "distribution": "uniform"}),
        ({"method": "granet", "end": 0.6}, {"schedule": flipout.Cubic(0.95, 240, window=(0.05, 0.6))}),
        ({"seed": 7}, {"seed": 7}),
    ],
)
def test_settings_reach_the_pruner(options: dict[str, Any], expected: dict[str, Any]) -> None:
    pruner = pruner_of(**options)
    assert values(pruner, expected) == expected


@pytest.mark.parametrize("options", [{}, {"criterion": "flipout.criteria:flip_saliency", "noise": 0}])
def test_the_horizon_reaches_the_flips(options: dict[str, Any]) -> None:
    pruner = pruner_of(horizon=50, **options)
    assert pruner.settings()["statistics"]["flips"].keywords == {"horizon": 50}


def test_hoyer_square_fine_tunes_for_150_of_350_epochs_more() -> None:
    settings = make_settings("paper", method="hoyer-square", model="mlp")
    assert settings.total_epochs == 500
    assert [pruning.step for pruning in pruner_of(method="hoyer-square", epochs=35).plan()] == [35 * 12]
    assert make_settings(method="hoyer-square", fine_tune=0, epochs=20).total_epochs == 20


def test_schedules() -> None:
    def moments(epochs: int, **options: Any) -> list[int]:
        settings = make_settings(epochs=epochs, **options)
        return [step // 10 for step in schedule(settings, epochs * 10, 10).moments()]

    assert moments(350, schedule="paper", sparsity=1 - 2**-4) == [70, 140, 210, 280]
    assert len(moments(10, schedule="paper", sparsity=1 - 2**-8)) == 8  # does not fit on epochs, does on steps
    assert moments(100, schedule="default", prunings=2, start=0, end=0.4) == [20, 40]
    assert moments(100, schedule="cubic", prunings=1, start=0.1, end=0.2) == [20]
    assert moments(100, schedule="one-shot", end=0.3) == [30]
    with pytest.raises(LabError, match="has no --prunings"):
        moments(100, schedule="paper", prunings=3)
    with pytest.raises(LabError, match="prunings do not fit"):
        pruner_of(epochs=1, prunings=50)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_optimizers(name: str) -> None:
    optimizer = make_optimizer(Settings(optimizer=name, learning_rate=0.5, momentum=0.3), nn.Linear(2, 2))
    assert type(optimizer).__name__.lower() == name
    assert optimizer.defaults["lr"] == 0.5
    assert 0.3 in (optimizer.defaults.get("momentum"), *optimizer.defaults.get("betas", ()))


def test_an_option_at_its_default_is_the_same_run() -> None:
    plain = make_settings(method="flipout-paper")
    same = make_settings(
        method="flipout-paper", noise=1.0, p="2", relative_to="gradient", schedule="default", start=0.05, floor=0
    )
    assert same == plain
    assert same.folder_name() == plain.folder_name()
    assert same.given_options == {}
    assert (plain.option("noise"), plain.option("p"), plain.option("schedule")) == (1.0, 2.0, "default")
    assert make_settings(noise=0.5).option("noise") == 0.5
    assert make_settings(method="magnitude").option("noise") is None
    assert make_settings(method="snip").option("schedule") is None
    assert make_settings(method="lottery", rewind_to=0) == make_settings(method="lottery")
    # A user's criterion may have another default.
    own = "flipout_lab.paper:signed_saliency"
    assert make_settings(criterion=own, p=2.0) != make_settings(criterion=own)


@pytest.mark.parametrize(
    ("method", "options", "arguments"),
    [
        ("lottery", {"rewind_to": "none"}, {"rewind_to": None}),
        ("lottery", {"rewind_to": -1}, {"rewind_to": None}),
        ("flipout", {"noise": "none"}, {"noise": None}),
        ("deep-r", {"temperature": "none"}, {"temperature": None}),
    ],
)
def test_none_is_written_as_text(method: str, options: dict[str, Any], arguments: dict[str, Any]) -> None:
    settings = make_settings(method=method, **options)
    assert validated(settings.as_dict()) == settings
    assert validated(settings.non_defaults()) == settings
    pruner = pruner_of(method=method, **options)
    assert values(pruner, arguments) == arguments


def test_null_is_not_given() -> None:
    assert make_settings(noise=None, epochs=None, p=None) == make_settings()
    assert validated({"noise": None, "no_longer_a_setting": None}) == validated({})
    assert make_settings(method="hoyer-square", sparsity="none").sparsity is None
    with pytest.raises(LabError, match="--epochs is 'none'"):
        make_settings(epochs="none")


@pytest.mark.parametrize(("text", "expected"), [("5", (5,)), ("5,", (5,)), ("100, 150", (100, 150)), ([7], (7,))])
def test_lists_are_written_with_commas(text: Any, expected: tuple[int, ...]) -> None:
    assert make_settings(milestones=text).milestones == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 3}, "flipout takes no --rounds"),
        ({"roundz": 3}, "did you mean 'rounds'"),
        ({"noise": -1}, "--noise is -1"),
        ({"method": "lottery", "rounds": "many"}, "--rounds is 'many'"),
        ({"method": "magnitude", "relative_to": "weight"}, "--noise"),
        ({"schedule": "paper", "start": 0.1}, "--start"),
        ({"method": "no_such_module:Mine"}, "no_such_module"),
        ({"method": "flipout.criteria:magnitude"}, "not a method"),
        ({"method": "flipout:Geometric"}, "flipout:Geometric"),
    ],
)
def test_invalid_options_are_explained(options: dict[str, Any], message: str) -> None:
    with pytest.raises(LabError, match=message):
        make_settings(**options)


def test_a_later_setting_does_not_rename_a_run() -> None:
    class Later(Settings):
        label_smoothing: float = 0.0

    values = {"epochs": 7, "method": "magnitude", "noise": 0.5}
    later, now = settings_class(flipout.METHODS["magnitude"], Later), validated(values)
    assert later.model_validate(values).folder_name() == now.folder_name()
    assert later.model_validate({**values, "label_smoothing": 0.1}).folder_name() != now.folder_name()


def test_stored_settings_of_a_method_that_is_not_here() -> None:
    stored = {"method": "somewhere.else:Mine", "strength": 3, "data": "/not/here", "sparsity": None}
    settings = validated(stored, stored=True)
    assert settings.option("strength") == 3
    assert settings.option("noise") is None
    assert settings.total_epochs == settings.epochs
    assert settings.as_dict()["strength"] == 3
