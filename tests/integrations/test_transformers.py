"""Pruning under the Hugging Face Trainer: exact sparsity, resumed bit for bit, with early stopping and best models."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flipout

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import (
        EarlyStoppingCallback,
        GPT2Config,
        GPT2LMHeadModel,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

from flipout.integrations.transformers import Prune, checkpoint_folder, read_state, write_state

pytestmark = [
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true"),
]

X = torch.randn(64, 12, generator=torch.Generator().manual_seed(0))
Y = X[:, :4].argmax(1)
ROWS = [{"x": x, "labels": y} for x, y in zip(X, Y, strict=True)]


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Dropout(0.1), nn.Linear(20, 4))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def zeros(model: nn.Module) -> int:
    return sum(int((p == 0).sum()) for p in model.parameters() if p.ndim > 1)


def trainer(folder: Path, *callbacks: TrainerCallback, **options: Any) -> Trainer:
    settings = {
        "output_dir": str(folder),
        "num_train_epochs": 5,
        "per_device_train_batch_size": 8,
        "learning_rate": 0.01,
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "logging_steps": 10,
        "save_strategy": "no",
        **options,
    }
    arguments = TrainingArguments(**settings)
    return Trainer(Classifier(), arguments, train_dataset=ROWS, eval_dataset=ROWS[:16], callbacks=list(callbacks))


@pytest.mark.parametrize(
    ("options", "steps"),
    [({}, 40), ({"max_steps": 25}, 25), ({"gradient_accumulation_steps": 3}, 15)],
)
def test_the_length_of_training_is_worked_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Any], steps: int
) -> None:
    prune = Prune("flipout", sparsity=0.9)
    training = trainer(tmp_path, prune, **options)
    training.train()
    assert prune.pruner is not None
    assert prune.pruner.schedule.steps == prune.pruner.step == steps
    assert prune.pruner.nonzero == 32
    assert zeros(training.model) == 288
    assert f"FlipOut(step {steps} of {steps}" in capsys.readouterr().out
    assert training.state.log_history[-1]["sparsity"] == pytest.approx(0.9)


class KilledError(Exception):
    pass


class KillAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step == self.step:
            raise KilledError


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("method", ["flipout", "deep-r"])
def test_a_killed_training_is_resumed_bit_for_bit(tmp_path: Path, method: str, elsewhere: bool) -> None:
    saving = {"save_strategy": "steps", "save_steps": 4, "save_total_limit": 2}
    prune = Prune(method, sparsity=0.9)
    whole = trainer(tmp_path / "a", prune, **saving)
    whole.train()
    with pytest.raises(KilledError):
        trainer(tmp_path / "b", Prune(method, sparsity=0.9), KillAt(14), **saving).train()
    folder, out = tmp_path / "b" / "checkpoint-12", tmp_path / "b"
    assert (folder / "flipout.pt").is_file()
    assert not (out / "checkpoint-4").exists()
    if elsewhere:
        shutil.move(folder, tmp_path / "moved")
        folder, out = tmp_path / "moved", tmp_path / "c"
    again = Prune(method, sparsity=0.9)
    resumed = trainer(out, again, **saving)
    resumed.train(resume_from_checkpoint=str(folder) if elsewhere else True)
    assert prune.pruner is not None
    assert again.pruner is not None
    assert again.pruner.events == prune.pruner.events
    state, other = whole.model.state_dict(), resumed.model.state_dict()
    assert all(torch.equal(tensor, other[name]) for name, tensor in state.items())


def test_a_checkpoint_without_its_pruner_is_refused(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 20}
    trainer(tmp_path, Prune(sparsity=0.9), **saving).train()
    (tmp_path / "checkpoint-20" / "flipout.pt").rename(tmp_path / "flipout.pt")
    with pytest.raises(ValueError, match=r"flipout\.pt.*checkpoint-20"):
        trainer(tmp_path, Prune(sparsity=0.9)).train(resume_from_checkpoint=str(tmp_path / "checkpoint-20"))
    given = Prune(sparsity=0.9, resume_from=tmp_path)
    trainer(tmp_path, given).train(resume_from_checkpoint=str(tmp_path / "checkpoint-20"))
    assert given.pruner is not None
    assert (given.pruner.step, given.pruner.nonzero) == (40, 32)
    (tmp_path / "checkpoint-20" / "flipout.pt").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"flipout\.pt"):
        trainer(tmp_path, Prune(sparsity=0.9)).train(resume_from_checkpoint=str(tmp_path / "checkpoint-20"))


def test_a_dense_checkpoint_is_pruned_in_the_steps_that_are_left(tmp_path: Path) -> None:
    trainer(tmp_path, max_steps=16, save_strategy="steps", save_steps=16).train()
    prune = Prune(sparsity=0.9)
    longer = trainer(tmp_path, prune, save_strategy="steps", save_steps=20)
    longer.train(resume_from_checkpoint=True)
    assert prune.pruner is not None
    assert (prune.pruner.step, prune.pruner.schedule.steps, prune.pruner.nonzero) == (24, 24, 32)
    assert (tmp_path / "checkpoint-40" / "flipout.pt").is_file()


def test_more_epochs_on_resume(tmp_path: Path) -> None:
    trainer(tmp_path, Prune(sparsity=0.9), save_strategy="epoch").train()
    longer = Prune(sparsity=0.9)
    with pytest.warns(flipout.ChangedLengthWarning, match="56.*40"):
        trainer(tmp_path, longer, num_train_epochs=7).train(resume_from_checkpoint=True)
    assert longer.pruner is not None
    assert (longer.pruner.step, longer.pruner.nonzero) == (56, 32)
    longer.pruner.check()


class Scores(TrainerCallback):
    """Gives every evaluation a score that is best at the start: a dense network beats a sparse one."""

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, float], **others: Any) -> None:
        metrics["eval_score"] = float(state.global_step)


@pytest.mark.parametrize("hold_back", [True, False])
@pytest.mark.parametrize("method", ["magnitude", "deep-r"])
def test_best_models_and_early_stopping_wait_for_the_last_pruning(tmp_path: Path, method: str, hold_back: bool) -> None:
    prune = Prune(method, sparsity=0.9, hold_back=hold_back)
    training = trainer(
        tmp_path,
        Scores(),
        EarlyStoppingCallback(early_stopping_patience=2),
        prune,
        num_train_epochs=10,
        eval_strategy="steps",
        eval_steps=8,
        save_strategy="steps",
        save_steps=8,
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model="score",
        greater_is_better=False,
    )
    training.train()
    assert prune.pruner is not None
    prune.pruner.check()
    if method == "deep-r" or not hold_back:  # Deep-R is as sparse as it gets from the start
        assert training.state.global_step == 24
        assert training.state.best_global_step == 8
    else:  # the last pruning is at step 40; the scores after it are 40, 48, 56
        assert training.state.global_step == 56
        assert training.state.best_global_step == 40
    sparse = zeros(training.model)
    assert sparse >= 288 if hold_back else sparse == 320 - prune.pruner.nonzero or method == "deep-r"


def test_what_is_held_back_survives_a_resume(tmp_path: Path) -> None:
    options = {
        "num_train_epochs": 10,
        "eval_strategy": "steps",
        "eval_steps": 8,
        "save_strategy": "steps",
        "save_steps": 8,
        "load_best_model_at_end": True,
        "metric_for_best_model": "score",
        "greater_is_better": False,
    }
    with pytest.raises(KilledError):
        trainer(tmp_path, Scores(), Prune("magnitude", sparsity=0.9), KillAt(60), **options).train()
    resumed = trainer(tmp_path, Scores(), Prune("magnitude", sparsity=0.9), **options)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.best_global_step == 40
    assert zeros(resumed.model) == 288


def test_the_sparsity_reaches_every_reporter(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    import os

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    os.environ["TENSORBOARD_LOGGING_DIR"] = str(tmp_path / "log")
    try:
        trainer(tmp_path, Prune(sparsity=0.9), report_to="tensorboard").train()
    finally:
        del os.environ["TENSORBOARD_LOGGING_DIR"]
    events = EventAccumulator(str(tmp_path / "log"))
    events.Reload()
    assert events.Scalars("train/sparsity")[-1].value == pytest.approx(0.9)


def test_a_second_training_goes_on(tmp_path: Path) -> None:
    prune = Prune(sparsity=0.9)
    training = trainer(tmp_path, prune)
    training.train()
    training.train()
    assert prune.pruner is not None
    assert (prune.pruner.step, prune.pruner.nonzero) == (80, 32)
    assert zeros(training.model) == 288


def test_two_callbacks_with_their_own_weights(tmp_path: Path) -> None:
    def callbacks() -> tuple[Prune, Prune]:
        return Prune(sparsity=0.9, include="net.0"), Prune("random", sparsity=0.5, include="net.3", log="head")

    trainer(tmp_path, *callbacks(), save_strategy="steps", save_steps=20).train()
    marked = json.loads((tmp_path / "checkpoint-20" / "trainer_state.json").read_text(encoding="utf-8"))
    assert marked["stateful_callbacks"]["flipout"]["files"] == ["flipout.head.pt", "flipout.pt"]
    first, second = callbacks()
    resumed = trainer(tmp_path, first, second)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-20"))
    assert first.pruner is not None
    assert second.pruner is not None
    assert (first.pruner.nonzero, second.pruner.nonzero) == (24, 40)
    assert zeros(resumed.model) == 216 + 40


def test_gpt2_is_pruned_through_its_transposed_matrices(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=32, n_positions=8, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    rows = [{"input_ids": torch.arange(8) + n, "labels": torch.arange(8) + n} for n in range(16)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path), num_train_epochs=10, report_to="none", use_cpu=True, disable_tqdm=True
    )
    prune = Prune("magnitude", sparsity=0.9)
    Trainer(model, arguments, train_dataset=rows, callbacks=[prune]).train()
    assert prune.pruner is not None
    assert set(prune.pruner.masks) == {
        f"transformer.h.0.{name}.weight" for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    }
    assert prune.pruner.nonzero == round(3072 * 0.1)
    prune.pruner.check()
    assert "16 x 48 (in x out)" in str(prune.pruner.summary())


def test_files_in_checkpoint_folders(tmp_path: Any) -> None:
    trial = tmp_path / "run-0" / "checkpoint-7"
    trial.mkdir(parents=True)
    assert checkpoint_folder(tmp_path, 7) == trial
    assert checkpoint_folder(tmp_path, 8) == tmp_path / "checkpoint-8"
    write_state(trial / "flipout.pt", {"steps": 1, "mask": torch.ones(2)})
    assert read_state(trial / "flipout.pt")["steps"] == 1
    torch.save([1], trial / "flipout.pt")
    with pytest.raises(ValueError, match=r"flipout\.pt"):
        read_state(trial / "flipout.pt")
    torch.save(nn.Linear(1, 1), trial / "flipout.pt")  # nothing is unpickled
    with pytest.raises(ValueError, match=r"flipout\.pt"):
        read_state(trial / "flipout.pt")
