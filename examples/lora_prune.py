"""Prune a network below its LoRA adapters: the adapters are trained, and left alone by the pruner."""

import torch
from peft import LoraConfig, get_peft_model
from sklearn.datasets import load_digits
from torch import Tensor, nn

import flipout

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)


class Digits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 100), nn.Linear(100, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(inputs).relu())
        return out


torch.manual_seed(0)
model = get_peft_model(Digits(), LoraConfig(r=4, target_modules=["first", "second"]))
for name, parameter in model.named_parameters():
    if name.endswith("base_layer.weight"):  # frozen by PEFT; what is pruned has to recover
        parameter.requires_grad_(True)

optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
pruner = flipout.FlipOut(model, optimizer, sparsity=0.9, steps=200)
print(pruner.coverage())
for step in range(200):
    batch = torch.randint(len(x), (64,), generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
    optimizer.step()
print(pruner)
