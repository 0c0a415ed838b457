"""Prune a YOLO-like detector to half of its multiply-adds, save the smaller network, and train it on in a new process.

The detector has C2f blocks, whose channels are split, summed and joined. It finds a square in noise: at each cell of
two grids it says whether a square has its centre there, and how large it is.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

import flipout

STEPS, BATCH, SIZE = 60, 16, 32
STRIDES = (4, 8)


class Convolution(nn.Sequential):
    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> None:
        convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        super().__init__(convolution, nn.BatchNorm2d(outputs), nn.SiLU())


class Bottleneck(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = Convolution(channels, channels), Convolution(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.first(x))  # type: ignore[no-any-return]


class C2f(nn.Module):
    """The block of YOLOv8: half of the channels go through bottlenecks, and all are read at the end."""

    def __init__(self, inputs: int, outputs: int, depth: int) -> None:
        super().__init__()
        half = outputs // 2
        self.first, self.last = Convolution(inputs, outputs, 1), Convolution((2 + depth) * half, outputs, 1)
        self.blocks = nn.ModuleList(Bottleneck(half) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.first(x).chunk(2, 1))
        for block in self.blocks:
            parts.append(block(parts[-1]))
        return self.last(torch.cat(parts, 1))  # type: ignore[no-any-return]


class Detector(nn.Module):
    """A backbone, a neck that joins two scales, and a head for each: whether a square is here, and its size."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down, self.deeper = (
            Convolution(1, 16, 3, 2),
            Convolution(16, 32, 3, 2),
            Convolution(32, 64, 3, 2),
        )
        self.shallow, self.deep, self.merged = C2f(32, 32, 2), C2f(64, 64, 2), C2f(96, 32, 1)
        self.enlarge, self.fine, self.coarse = nn.Upsample(scale_factor=2), nn.Conv2d(32, 2, 1), nn.Conv2d(64, 2, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shallow = self.shallow(self.down(self.stem(x)))
        deep = self.deep(self.deeper(shallow))
        merged = self.merged(torch.cat([self.enlarge(deep), shallow], 1))
        return self.fine(merged), self.coarse(deep)


def images(seed: int, number: int = BATCH) -> tuple[Tensor, Tensor]:
    """Noise with a square in each image; the centre and the side of each square."""
    random = torch.Generator().manual_seed(seed)
    x = 0.3 * torch.randn(number, 1, SIZE, SIZE, generator=random)
    squares = torch.stack([torch.randint(5, SIZE - 5, (number,), generator=random) for _ in range(2)], 1)
    sides = torch.randint(2, 5, (number,), generator=random)
    for image, (row, column), side in zip(x, squares.tolist(), sides.tolist(), strict=True):
        image[0, row - side : row + side, column - side : column + side] += 1
    return x, torch.cat([squares, sides[:, None]], 1)


def loss_of(outputs: tuple[Tensor, Tensor], squares: Tensor) -> Tensor:
    """The cross-entropy over the cells of each grid, and the error of the side at the right cell."""
    total = torch.zeros(())
    for output, stride in zip(outputs, STRIDES, strict=True):
        width = output.shape[-1]
        cell = squares[:, 0] // stride * width + squares[:, 1] // stride
        scores, sides = output.flatten(2).unbind(1)
        here = sides.gather(1, cell[:, None])[:, 0]
        total = total + nn.functional.cross_entropy(scores, cell) + (here - squares[:, 2]).abs().mean()
    return total


def accuracy(model: nn.Module) -> float:
    """The share of squares whose cell in the coarse grid is found."""
    x, squares = images(10**6, 400)
    with torch.no_grad():
        scores = model.eval()(x)[1][:, 0].flatten(1)
    cell = squares[:, 0] // STRIDES[1] * (SIZE // STRIDES[1]) + squares[:, 1] // STRIDES[1]
    return float((scores.argmax(1) == cell).float().mean())


def train(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    model.train()
    for number in range(first, last):
        x, squares = images(number)
        optimizer.zero_grad()
        loss_of(model(x), squares).backward()
        optimizer.step()


def prune(file: str) -> None:
    torch.manual_seed(0)
    model = Detector()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    pruner = flipout.FlipOut(
        model, optimizer, sparsity=0.5, steps=STEPS, granularity="channel", target="macs", round_to=4
    )
    train(model, optimizer, 0, STEPS)
    print(f"{pruner.events[-1].reached:.1%} of the multiply-adds are pruned, half was asked for")
    small = flipout.export.compact(model, images(0)[0])
    print(f"{type(small).__name__}: {parameters(model):,} parameters before, {parameters(small):,} after")
    print(f"accuracy: {accuracy(model):.1%} before, {accuracy(small):.1%} after")
    flipout.export.save_compacted(small, file)


def go_on(file: str) -> None:
    """What the new process does: it needs the code of the detector and the file."""
    small = flipout.export.load_compacted(file, Detector)
    print(f"in a new process: {parameters(small):,} parameters, accuracy {accuracy(small):.1%}")
    optimizer = torch.optim.AdamW(small.parameters(), lr=1e-3)
    train(small, optimizer, STEPS, 2 * STEPS)
    print(f"after {STEPS} more steps: accuracy {accuracy(small):.1%}")


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        go_on(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "detector.safetensors")
            prune(path)
            sys.stdout.flush()
            subprocess.run([sys.executable, "-W", "error", __file__, path], check=True)
