"""From a trained network to a small int8 file without training again: prune, recalibrate, compact, quantize."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save
from sklearn.datasets import load_digits
from torch import Tensor, nn

import flipout
from flipout.export.formats import open_session, run_session
from flipout.export.timing import time_interleaved

Run = Callable[[Tensor], Tensor]


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return 1,400 training images of 8 x 8 pixels with labels, and 397 test images with labels."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(images, dtype=torch.float32)[order].view(-1, 1, 8, 8) / 16, torch.tensor(labels)[order]
    return x[:1400], y[:1400], x[1400:], y[1400:]


def block(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]


def trained(x: Tensor, y: Tensor, epochs: int = 12) -> nn.Module:
    """A convolutional network with batch norm, trained for some seconds."""
    torch.manual_seed(0)
    parts = [*block(1, 32), *block(32, 64), nn.MaxPool2d(2), *block(64, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*parts, nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
        rates.step()
    return model.eval()


@torch.no_grad()
def main() -> None:
    x, y, x_test, y_test = digits()
    with torch.enable_grad():
        dense = trained(x, y)
    batches = list(x[:1000].split(100))  # unlabelled

    pruned = copy.deepcopy(dense)
    print(flipout.prune(pruned, batches, sparsity=0.5, granularity="channel", recalibrate=False), end="\n\n")
    recalibrated = flipout.recalibrate(copy.deepcopy(pruned), batches)
    compacted = flipout.export.compact(recalibrated, x[:1])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "net.onnx"
        flipout.export.to_onnx(compacted, file, x[:1], calibrate=batches)
        session, int8_bytes = open_session(file), file.stat().st_size

    networks = {
        "dense": dense,
        "half of the channels pruned": pruned,
        "recalibrated": recalibrated,
        "compacted": compacted,
    }
    runs: dict[str, Run] = {name: network.__call__ for name, network in networks.items()}
    runs["int8"] = lambda images: run_session(session, (images,))[0]
    sizes = {name: len(save(network.state_dict())) for name, network in networks.items()} | {"int8": int8_bytes}
    times = time_interleaved({name: partial(run, x_test[:32]) for name, run in runs.items()}, 20)
    print(f"{'rung':28}{'bytes':>10}{'ms, batch of 32':>18}{'accuracy':>10}")
    for name, run in runs.items():
        accuracy = float((run(x_test).argmax(1) == y_test).float().mean())
        print(f"{name:28}{sizes[name]:>10,}{times[name].median:>18.2f}{accuracy:>10.2%}")


if __name__ == "__main__":
    main()
