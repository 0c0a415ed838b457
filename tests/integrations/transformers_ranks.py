"""A training with the Hugging Face Trainer. Run as a script: folder, step to be killed at, "resume" or "start"."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import torch
from transformers import TrainerCallback

from flipout.integrations.transformers import Prune
from tests.integrations.test_transformers import trainer


class Kill(TrainerCallback):
    """Kills its process, as an operator or a machine would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def main(folder: Path, kill_at: int, resume: bool) -> None:
    prune = Prune("flipout", sparsity=0.9, summary=False)
    training = trainer(
        folder, prune, Kill(kill_at), save_strategy="steps", save_steps=6, ddp_backend="gloo", num_train_epochs=6
    )
    training.train(resume_from_checkpoint=str(folder / "checkpoint-12") if resume else None)
    assert prune.pruner is not None
    state = {"weights": training.model.state_dict(), "masks": prune.pruner.masks, "step": prune.pruner.step}
    torch.save(state, folder / f"{'resumed' if resume else 'whole'}-{training.args.process_index}.pt")
    torch.distributed.barrier()  # a process that ends while the other still talks to it can fail the other
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "resume")
