"""ResNet18 and ResNet10 for small images: a 3 x 3 stem, and no pooling before the blocks."""

from __future__ import annotations

from torch import Tensor, nn

from .network_sizes import Shape, scaled


class ResidualBlock(nn.Module):
    """Two convolutions and a shortcut around them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm1(self.conv1(x)).relu()
        out = self.norm2(self.conv2(out)) + self.shortcut(x)
        return out.relu()  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """Four stages with 64, 128, 256 and 512 channels times the width. The last three halve the sides of the image."""

    def __init__(self, shape: Shape, classes: int, width: float, blocks_per_stage: int, stem_stride: int) -> None:
        super().__init__()
        channels = [scaled(n, width) for n in (64, 128, 256, 512)]
        self.stem = nn.Conv2d(shape[0], channels[0], 3, stem_stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels[0])
        blocks: list[nn.Module] = []
        before = channels[0]
        for stage, after in enumerate(channels):
            blocks.append(ResidualBlock(before, after, 2 if stage else 1))
            blocks += [ResidualBlock(after, after, 1) for _ in range(blocks_per_stage - 1)]
            before = after
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.norm(self.stem(x)).relu())
        return self.head(self.pool(x).flatten(1))  # type: ignore[no-any-return]


def resnet18(shape: Shape, classes: int, width: float) -> nn.Module:
    return ResNet(shape, classes, width, blocks_per_stage=2, stem_stride=1)


def resnet10(shape: Shape, classes: int, width: float) -> nn.Module:
    return ResNet(shape, classes, width, blocks_per_stage=1, stem_stride=2)
