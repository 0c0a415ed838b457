"""A Lightning training on two processes. Run as a script: folder, step to be killed at, checkpoint to resume from."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from flipout.integrations.lightning import Prune
from tests.integrations.test_lightning import Module, loader


class Kill(Callback):
    """Kills its process, as an operator or a machine would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Any, *others: Any) -> None:
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def main(folder: Path, kill_at: int, checkpoint: str) -> None:
    prune = Prune("flipout", sparsity=0.9, summary=False)
    saving = ModelCheckpoint(dirpath=folder / "saved", every_n_epochs=1, save_top_k=-1, filename="{epoch}")
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        max_epochs=4,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        callbacks=[prune, saving, Kill(kill_at)],
        **quiet,
    )
    module = Module()
    trainer.fit(module, loader(), ckpt_path=folder / "saved" / checkpoint if checkpoint else None)
    assert prune.pruner is not None
    state = {"weights": module.state_dict(), "masks": prune.pruner.masks, "step": prune.pruner.step}
    torch.save(state, folder / f"{checkpoint or 'whole'}-{trainer.global_rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "")
