"""Pruning under a Lightning Trainer: exact sparsity, resumed bit for bit, with the callbacks that people use."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import flipout

pytest.importorskip("lightning")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import (
        Callback,
        EarlyStopping,
        EMAWeightAveraging,
        GradientAccumulationScheduler,
        ModelCheckpoint,
        StochasticWeightAveraging,
        WeightAveraging,
    )

from flipout.integrations.lightning import Prune

pytestmark = [
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks used to create"),
]

X = torch.randn(80, 12, generator=torch.Generator().manual_seed(0))
Y = X[:, :4].argmax(1)
KEPT = 32
"""What a sparsity of 90 % leaves of the 320 weights of `Module`."""


class Module(pl.LightningModule):
    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(12, 20), nn.BatchNorm1d(20) if norm else nn.Identity(), nn.ReLU())
        self.head = nn.Linear(20, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.net(x))
        return out

    def training_step(self, batch: Any, index: int) -> Tensor:
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("density", 1 - zeros(self) / 320)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class ByStep(Module):
    """Takes its batch by the step: Lightning starts an epoch over if it is resumed within it."""

    def training_step(self, batch: Any, index: int) -> Tensor:
        first = 8 * (self.trainer.global_step % 10)
        return super().training_step((X[first : first + 8], Y[first : first + 8]), index)


def zeros(module: nn.Module) -> int:
    return sum(int((p == 0).sum()) for name, p in module.named_parameters() if p.ndim > 1)


def loader(batch_size: int = 8, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(X, Y), batch_size=batch_size, **options)


def trainer(folder: Path, *callbacks: Callback, **options: Any) -> pl.Trainer:
    settings = {
        "max_epochs": 4,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": any(isinstance(c, ModelCheckpoint) for c in callbacks),
        "accelerator": "cpu",
        "default_root_dir": folder,
        "num_sanity_val_steps": 0,
        **options,
    }
    return pl.Trainer(callbacks=list(callbacks), **settings)


def equal(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, 40),
        ({"max_steps": 25}, 25),
        ({"max_epochs": -1, "max_steps": 25}, 25),
        ({"accumulate_grad_batches": 3}, 16),
        ({"limit_train_batches": 5}, 20),
    ],
)
def test_the_length_of_training_is_worked_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Any], steps: int
) -> None:
    module, prune = Module(), Prune("flipout", sparsity=0.9)
    trainer(tmp_path, prune, **options).fit(module, loader())
    assert prune.pruner is not None
    assert prune.pruner.schedule.steps == prune.pruner.step == steps
    assert prune.pruner.nonzero == KEPT
    assert zeros(module) == 320 - KEPT
    assert f"FlipOut(step {steps} of {steps}" in capsys.readouterr().out


def test_accumulation_that_changes_by_epoch(tmp_path: Path) -> None:
    prune = Prune("magnitude", sparsity=0.9)
    scheduler = GradientAccumulationScheduler({0: 1, 2: 4})
    trainer(tmp_path, prune, scheduler).fit(Module(), loader())
    assert prune.pruner is not None
    assert prune.pruner.schedule.steps == prune.pruner.step == 26


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        while True:
            yield X[0], Y[0]


def test_a_training_without_a_fixed_length_asks_for_steps(tmp_path: Path) -> None:
    class Stop(Callback):
        def on_train_batch_end(self, trainer: Any, *others: Any) -> None:
            trainer.should_stop = trainer.global_step >= 20

    endless = DataLoader(Endless(), batch_size=4)
    with pytest.raises(ValueError, match="steps="):
        trainer(tmp_path, Prune(sparsity=0.9)).fit(Module(), endless)
    prune = Prune(sparsity=0.9, steps=20)
    trainer(tmp_path, prune, Stop()).fit(Module(), endless)
    assert prune.pruner is not None
    assert (prune.pruner.step, prune.pruner.nonzero) == (20, KEPT)


def test_any_method_by_name_or_class_with_options(tmp_path: Path) -> None:
    class Mine(flipout.GlobalMagnitude):
        """A method of the user's."""

    choices = [
        Prune("magnitude", sparsity=0.9, scope="layer", exclude="head"),
        Prune(flipout.METHODS["random"], sparsity=0.9, exclude="head"),
        Prune(Mine, sparsity=0.9, schedule=flipout.Cubic, exclude="head"),
        Prune(
            flipout.Pruner,
            criterion=flipout.criteria.magnitude,
            schedule=lambda steps: flipout.OneShot(0.9, steps, at=0.5),
            exclude="head",
        ),
        Prune("deep-r", sparsity=0.9, exclude="head"),
        Prune("hoyer-square", sparsity=0.9, exclude="head"),
        Prune(
            "snip",
            sparsity=0.9,
            batches=[(X[:8], Y[:8])],
            loss_fn=nn.functional.cross_entropy,
            exclude="head",
        ),
    ]
    for prune in choices:
        module = Module()
        trainer(tmp_path, prune, max_epochs=1).fit(module, loader())
        assert prune.pruner is not None
        assert prune.pruner.nonzero == 24
        assert int(torch.count_nonzero(module.get_parameter("net.0.weight"))) <= 24


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("flip-out", {"sparsity": 0.9}, "flip-out.*flipout"),
        ("flipout", {}, "sparsity="),
        ("flipout", {"sparsity": 0.9, "floors": 1}, r"floors.*floor\?"),
        ("flipout", {"sparsity": 0.9, "steps": 0}, "steps is 0"),
        (nn.Linear, {"sparsity": 0.9}, "Linear"),
    ],
)
def test_mistakes_are_found_before_training(method: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Prune(method, **options)


class KilledError(Exception):
    pass


class KillAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Any, *others: Any) -> None:
        if trainer.global_step == self.step:
            raise KilledError


@pytest.mark.parametrize("method", ["flipout", "magnitude-uncertainty", "deep-r", "lottery"])
def test_a_killed_training_is_resumed_bit_for_bit(tmp_path: Path, method: str) -> None:
    whole, prune = ByStep(norm=True), Prune(method, sparsity=0.9)
    trainer(tmp_path, prune).fit(whole, loader())
    saving = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=3, save_top_k=-1, filename="{step}")
    with pytest.raises(KilledError):
        trainer(tmp_path, Prune(method, sparsity=0.9), KillAt(14), saving).fit(ByStep(norm=True), loader())
    resumed, again = ByStep(norm=True), Prune(method, sparsity=0.9)
    trainer(tmp_path, again).fit(resumed, loader(), ckpt_path=tmp_path / "step=12.ckpt", weights_only=True)
    assert equal(whole, resumed)
    assert prune.pruner is not None
    assert again.pruner is not None
    assert again.pruner.events == prune.pruner.events
    assert all(torch.equal(mask, again.pruner.masks[name]) for name, mask in prune.pruner.masks.items())


class Scores(Callback):
    """Logs a score that is best at the start: a dense network beats a sparse one."""

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        pl_module.log("score", float(trainer.global_step))


def test_best_checkpoints_and_early_stopping_wait_for_the_last_pruning(tmp_path: Path) -> None:
    options = {"max_epochs": 12}
    for hold_back in (True, False):
        module, prune = Module(), Prune("magnitude", sparsity=0.9, hold_back=hold_back)
        best = ModelCheckpoint(dirpath=tmp_path / str(hold_back), monitor="score", save_top_k=2, filename="{step}")
        stop = EarlyStopping(monitor="score", patience=2, stopping_threshold=15)
        ended = trainer(tmp_path, stop, Scores(), best, prune, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", flipout.UnfinishedWarning)
            ended.fit(module, loader(), loader())
        weights = torch.load(best.best_model_path, weights_only=True)["state_dict"]
        sparse = sum(int((weight == 0).sum()) for weight in weights.values() if weight.ndim > 1)
        files = sorted(path.name for path in (tmp_path / str(hold_back)).iterdir())
        assert stop.stopping_threshold == 15
        if hold_back:  # the last pruning is at step 60; the scores after it are 60, 70, 80
            assert (ended.global_step, sparse) == (80, 288)
            assert files == ["step=60.ckpt", "step=70.ckpt"]
            assert Path(best.best_model_path).name == "step=60.ckpt"
            assert float(stop.best_score) == 60
        else:
            assert ended.global_step == 10  # the threshold
            assert sparse < 288


def test_what_is_held_back_survives_a_resume(tmp_path: Path) -> None:
    def callbacks(folder: str) -> tuple[Prune, ModelCheckpoint, EarlyStopping]:
        best = ModelCheckpoint(dirpath=tmp_path / folder, monitor="score", save_last=True, filename="{step}")
        return Prune("magnitude", sparsity=0.9), best, EarlyStopping(monitor="score", patience=2)

    module = Module()
    with pytest.raises(KilledError):
        trainer(tmp_path, *callbacks("a"), Scores(), KillAt(45), max_epochs=12).fit(module, loader(), loader())
    resumed, (prune, best, stop) = Module(), callbacks("a")
    ended = trainer(tmp_path, prune, best, stop, Scores(), max_epochs=12)
    ended.fit(resumed, loader(), loader(), ckpt_path=tmp_path / "a" / "last.ckpt")
    assert ended.global_step == 80
    assert Path(best.best_model_path).name == "step=60.ckpt"


def average(kind: str) -> Callback:
    if kind == "swa":
        return StochasticWeightAveraging(swa_lrs=0.05, swa_epoch_start=2)
    if kind == "ema":
        return EMAWeightAveraging(decay=0.9)
    return WeightAveraging()


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.. before")
@pytest.mark.filterwarnings("ignore:.*[Ss]wapping scheduler")
@pytest.mark.parametrize(("first", "norm"), [(False, True), (True, False)])
@pytest.mark.parametrize("kind", ["swa", "ema", "average"])
def test_averages_end_with_the_zeros_in_place(tmp_path: Path, kind: str, first: bool, norm: bool) -> None:
    module, prune = Module(norm=norm), Prune("magnitude", sparsity=0.9)
    saving = ModelCheckpoint(dirpath=tmp_path, save_last=True)
    callbacks = [prune, average(kind)] if first else [average(kind), prune]
    trainer(tmp_path, saving, *callbacks, max_epochs=6).fit(module, loader(), loader())
    assert prune.pruner is not None
    assert prune.pruner.schedule.steps == 60
    assert zeros(module) >= 288
    prune.pruner.check(module)
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]
    assert sum(int((weight == 0).sum()) for weight in saved.values() if weight.ndim > 1) >= 288


def test_averages_are_resumed_bit_for_bit(tmp_path: Path) -> None:
    whole = ByStep()
    trainer(tmp_path, Prune(sparsity=0.9), average("ema")).fit(whole, loader(), loader())
    saving = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=12, filename="half")
    with pytest.raises(KilledError):
        trainer(tmp_path, Prune(sparsity=0.9), average("ema"), saving, KillAt(14)).fit(ByStep(), loader(), loader())
    resumed = ByStep()
    path = tmp_path / "half.ckpt"
    trainer(tmp_path, Prune(sparsity=0.9), average("ema")).fit(resumed, loader(), loader(), ckpt_path=path)
    assert equal(whole, resumed)


def test_more_epochs_on_resume(tmp_path: Path) -> None:
    module, prune = Module(), Prune(sparsity=0.9)
    first = trainer(tmp_path, prune)
    first.fit(module, loader())
    first.save_checkpoint(tmp_path / "end.ckpt")
    longer = Prune(sparsity=0.9)
    with pytest.warns(flipout.ChangedLengthWarning, match=r"60.*40.*steps=40"):
        trainer(tmp_path, longer, max_epochs=6).fit(Module(), loader(), ckpt_path=tmp_path / "end.ckpt")
    quiet, module = Prune(sparsity=0.9, steps=40), Module()
    trainer(tmp_path, quiet, max_epochs=6).fit(module, loader(), ckpt_path=tmp_path / "end.ckpt")
    for callback in (longer, quiet):
        assert callback.pruner is not None
        assert (callback.pruner.step, callback.pruner.nonzero) == (60, KEPT)
    assert zeros(module) == 288
    with pytest.raises(ValueError, match=r"steps=60.*steps=40"):
        trainer(tmp_path, Prune(sparsity=0.9, steps=60), max_epochs=6).fit(
            Module(), loader(), ckpt_path=tmp_path / "end.ckpt"
        )
    with pytest.raises(ValueError, match="settings"):
        trainer(tmp_path, Prune(sparsity=0.8, steps=40), max_epochs=6).fit(
            Module(), loader(), ckpt_path=tmp_path / "end.ckpt"
        )


def test_a_dense_checkpoint_is_pruned_in_the_steps_that_are_left(tmp_path: Path) -> None:
    dense = trainer(tmp_path, max_epochs=2)
    dense.fit(Module(), loader())
    dense.save_checkpoint(tmp_path / "dense.ckpt")
    prune = Prune(sparsity=0.9)
    trainer(tmp_path, prune, max_epochs=5).fit(Module(), loader(), ckpt_path=tmp_path / "dense.ckpt")
    assert prune.pruner is not None
    assert (prune.pruner.step, prune.pruner.schedule.steps, prune.pruner.nonzero) == (30, 30, KEPT)


def test_a_second_fit_goes_on_and_another_module_starts_anew(tmp_path: Path) -> None:
    module, prune = Module(), Prune(sparsity=0.9)
    fitted = trainer(tmp_path, prune)
    fitted.fit(module, loader())
    assert prune.pruner is not None
    masks = copy.deepcopy(prune.pruner.masks)
    fitted.fit_loop.max_epochs = 6
    with pytest.warns(flipout.ChangedLengthWarning):
        fitted.fit(module, loader())
    assert prune.pruner.step == 60
    assert all(torch.equal(mask, masks[name]) for name, mask in prune.pruner.masks.items())
    assert zeros(module) == 288
    trainer(tmp_path, prune).fit(Module(), loader())
    assert (prune.pruner.step, prune.pruner.nonzero) == (40, KEPT)


class Manual(Module):
    """Two optimizers, stepped by hand: the head every second batch."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, index: int) -> None:  # type: ignore[override]
        x, y = batch
        first, second = self.optimizers()
        self.manual_backward(nn.functional.cross_entropy(self(x), y))
        first.step()
        first.zero_grad()
        if index % 2:
            second.step()
            second.zero_grad()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.net, self.head)]


def test_manual_optimization_with_several_optimizers(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"optimizer 0 holds 1 .*optimizer="):
        trainer(tmp_path, Prune(sparsity=0.9, steps=40)).fit(Manual(), loader())
    with pytest.raises(ValueError, match=r"Manual.*steps="):
        trainer(tmp_path, Prune(sparsity=0.9, optimizer=0)).fit(Manual(), loader())
    with pytest.raises(ValueError, match="optimizer="):
        trainer(tmp_path, Prune(sparsity=0.9, optimizer=2, steps=9)).fit(Manual(), loader())
    chosen = Prune(sparsity=0.5, include="head", steps=20, log="head")
    by_index = Prune(sparsity=0.9, optimizer=0, steps=40, log="net")
    module = Manual()
    trainer(tmp_path, chosen, by_index).fit(module, loader())
    assert chosen.pruner is not None
    assert by_index.pruner is not None
    assert (chosen.pruner.step, chosen.pruner.nonzero) == (20, 40)
    assert (by_index.pruner.step, by_index.pruner.nonzero) == (40, 24)
    assert zeros(module) == 40 + 216


def test_the_sparsity_is_logged(tmp_path: Path) -> None:
    from lightning.pytorch.loggers import CSVLogger

    log = CSVLogger(tmp_path)
    trainer(tmp_path, Prune(sparsity=0.9), logger=log, log_every_n_steps=1).fit(Module(), loader())
    rows = (Path(log.log_dir) / "metrics.csv").read_text(encoding="utf-8").splitlines()
    column = rows[0].split(",").index("sparsity")
    values = [float(row.split(",")[column]) for row in rows[1:] if row.split(",")[column]]
    assert values[0] == 0
    assert values[-1] == pytest.approx(0.9)
    assert len(values) >= 40


def test_interrupted_trainings_detach(tmp_path: Path) -> None:
    module = Module()
    with pytest.raises(KilledError):
        trainer(tmp_path, Prune(sparsity=0.9), KillAt(5)).fit(module, loader())
    flipout.GlobalMagnitude(module, module.configure_optimizers(), sparsity=0.9, steps=10).remove()


@pytest.mark.filterwarnings("error::flipout.UnfinishedWarning")
def test_fast_dev_run_prunes_nothing(tmp_path: Path) -> None:
    module, prune = Module(), Prune(sparsity=0.9)
    trainer(tmp_path, prune, fast_dev_run=True).fit(module, loader(), loader())
    assert prune.pruner is not None
    assert (prune.pruner.step, prune.pruner.nonzero) == (1, 320)


def test_testing_a_checkpoint_leaves_the_pruner_alone(tmp_path: Path) -> None:
    module, prune = Module(), Prune(sparsity=0.9)
    saving = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=12, save_top_k=-1, filename="{step}")
    fitted = trainer(tmp_path, prune, saving)
    fitted.fit(module, loader())
    fitted.validate(module, loader(), ckpt_path=tmp_path / "step=36.ckpt", verbose=False)
    assert prune.pruner is not None
    assert (prune.pruner.step, prune.pruner.nonzero) == (40, KEPT)
    prune.pruner.check()
