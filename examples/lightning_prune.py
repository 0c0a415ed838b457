"""Prune under a Lightning Trainer, kill the training half-way, resume it, and get the same weights bit for bit."""

import logging
import tempfile
from typing import Any

import lightning
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from flipout.integrations.lightning import Prune

logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def trainer(prune: Prune, epochs: int) -> lightning.Trainer:
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    return lightning.Trainer(max_epochs=epochs, accelerator="cpu", callbacks=[prune], **quiet)


loader = DataLoader(TensorDataset(x, y), batch_size=64)
whole = Digits()
trainer(Prune("flipout", sparsity=0.95), epochs=10).fit(whole, loader)

checkpoint = tempfile.mkdtemp() + "/half.ckpt"
steps = 10 * len(loader)  # this Trainer stops after 5 epochs, as if it were killed
first = trainer(Prune("flipout", sparsity=0.95, steps=steps, summary=False), epochs=5)
first.fit(Digits(), loader)
first.save_checkpoint(checkpoint)

resumed = Digits()
trainer(Prune("flipout", sparsity=0.95, summary=False), epochs=10).fit(resumed, loader, ckpt_path=checkpoint)
same = all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
print(f"identical to the last bit: {same}")
