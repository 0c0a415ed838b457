"""Prune in a loop with Hugging Face Accelerate, with gradient accumulation and a checkpoint."""

import tempfile

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import flipout

EPOCHS, ACCUMULATED = 10, 2
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED)
torch.manual_seed(0)
model: nn.Module = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(TensorDataset(x, y), batch_size=32)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

steps = EPOCHS * -(-len(loader) // ACCUMULATED)  # optimizer steps; the last step of an epoch may take fewer batches
pruner = flipout.FlipOut(model, optimizer, sparsity=0.95, steps=steps)
accelerator.register_for_checkpointing(pruner)

for _epoch in range(EPOCHS):
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()

folder = tempfile.mkdtemp()
accelerator.save_state(folder)  # holds the pruner too; accelerator.load_state(folder) restores it
print(pruner)
