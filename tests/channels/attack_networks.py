"""Random networks with the operations that are hardest for compaction: groups, dilation, transposed convolutions, norms
over channels, chunk and split. Some are for images, some for sequences with the features on the last axis."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.channels.networks import BLOCKS, Architect, Residual

IMAGE_BLOCKS = (
    *BLOCKS,
    *("groups", "groups", "dilated", "dilated", "transposed", "transposed"),
    *("layer norm", "group norm", "chunk", "chunk", "split", "split", "shuffle"),
)
SEQUENCE_BLOCKS = ("feed forward", "feed forward", "layer norm", "chunk", "split", "gated", "attention")


class Chunked(nn.Module):
    """Cuts its channels into two equal parts and multiplies, adds or swaps them, or returns one of them."""

    def __init__(self, axis: int, kind: int) -> None:
        super().__init__()
        self.axis, self.kind = axis, kind

    def forward(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, self.axis) if self.kind % 2 else torch.chunk(x, 2, dim=self.axis)
        if self.kind < 2:
            return first * second.sigmoid()
        if self.kind < 4:
            return first + second
        return torch.cat([second, first], self.axis) if self.kind < 6 else second


class Split(nn.Module):
    """Cuts its channels into unequal parts, sends each through a branch of its own, and concatenates the results."""

    def __init__(self, axis: int, sizes: list[int], branches: list[nn.Module]) -> None:
        super().__init__()
        self.axis, self.sizes, self.branches = axis, sizes, nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.split(x, self.sizes, self.axis)
        return torch.cat([branch(part) for branch, part in zip(self.branches, parts, strict=True)], self.axis)


class Shuffled(nn.Module):
    """Shuffles channels between groups, as ShuffleNet does."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        x = x.view(batch, self.groups, channels // self.groups, height, width)
        return x.transpose(1, 2).reshape(batch, channels, height, width)


class ChannelsLastNorm(nn.Module):
    """A layer norm over the channels of an image, as ConvNeXt has it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(x.permute(0, 2, 3, 1))
        return out.permute(0, 3, 1, 2)


class Attention(nn.Module):
    """Attention with one head."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(width, 3 * inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.project(x).chunk(3, -1)
        out: Tensor = self.out((query @ key.transpose(1, 2)).div(10).softmax(-1) @ value)
        return out


class AttackArchitect(Architect):
    """Draws networks for images of 3 x 10 x 10, and networks for sequences of 7 x 6."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, blocks=IMAGE_BLOCKS)

    def block(self, channels: int) -> tuple[nn.Module, int]:
        kind = self.random.choice(self.blocks)
        if kind == "groups":
            return self.grouped(channels)
        if kind == "dilated":
            return self.dilated(channels)
        if kind == "transposed":
            return self.transposed(channels)
        if kind == "layer norm":
            norms = nn.LayerNorm([channels, 10, 10]), ChannelsLastNorm(channels), nn.LayerNorm([10, 10])
            return self.random.choice(norms), channels
        if kind == "group norm":
            groups = self.random.choice([each for each in (1, 2, 4, channels) if channels % each == 0])
            return nn.GroupNorm(groups, channels), channels
        if kind == "chunk" and channels % 2 == 0:
            return self.chunked(1, channels)
        if kind == "split" and channels > 1:
            return self.split(channels)
        if kind == "shuffle" and channels % 2 == 0:
            return Shuffled(2), channels
        return super().block(channels)

    def grouped(self, channels: int) -> tuple[nn.Module, int]:
        """Two layers, of which the first has groups; its channels are the product of the groups and a small number."""
        groups, inner = self.random.choice((2, 3, 4)), self.random.randint(1, 3)
        before = nn.Conv2d(channels, groups * inner, 1, bias=self.flip())
        after = groups * self.random.randint(1, 3)
        layer = nn.Conv2d(groups * inner, after, 3, padding=1, groups=groups, bias=self.flip())
        return nn.Sequential(before, self.activation(), layer, self.activation()), after

    def dilated(self, channels: int) -> tuple[nn.Module, int]:
        """A convolution that sees far, sometimes one for each channel, and with a kernel that may not be square."""
        dilation, depthwise = self.random.choice((2, 3)), self.flip()
        after = channels if depthwise else self.random.randint(1, 10)
        kernel = self.random.choice(((3, 3), (1, 3), (3, 1)))
        padding = (dilation * (kernel[0] // 2), dilation * (kernel[1] // 2))
        groups = channels if depthwise else 1
        layer = nn.Conv2d(channels, after, kernel, padding=padding, dilation=dilation, groups=groups, bias=self.flip())
        return nn.Sequential(layer, nn.BatchNorm2d(after), self.activation()), after

    def transposed(self, channels: int) -> tuple[nn.Module, int]:
        """A smaller image, and a transposed convolution that makes it larger again, sometimes with groups."""
        inner = 2 * self.random.randint(1, 4)
        down = nn.Conv2d(channels, inner, 3, stride=2, padding=1, bias=self.flip())
        groups = self.random.choice((1, 1, 2))
        after = 2 * self.random.randint(1, 4)
        up = nn.ConvTranspose2d(inner, after, 3, stride=2, padding=1, output_padding=1, groups=groups, bias=self.flip())
        layers = [down, self.activation(), up]
        if self.flip():
            layers.append(nn.ConvTranspose2d(after, after, 3, padding=2, dilation=2, bias=self.flip()))
        return nn.Sequential(*layers, self.activation()), after

    def split(self, channels: int) -> tuple[nn.Module, int]:
        at = self.random.randint(1, channels - 1)
        sizes = [at, channels - at]
        after = [self.random.randint(1, 6), channels - at]
        branches = [self.same(at, after[0]), self.random.choice((nn.Identity(), nn.ReLU()))]
        return Split(1, sizes, branches), sum(after)

    def chunked(self, axis: int, channels: int) -> tuple[nn.Module, int]:
        kind = self.random.randrange(8)
        return Chunked(axis, kind), channels if kind in (4, 5) else channels // 2

    def sequence_network(self) -> nn.Module:
        """A network with the features on the last axis."""
        torch.manual_seed(self.random.randrange(1 << 30))
        width, layers = 6, list[nn.Module]()
        for _ in range(self.random.randint(1, 5)):
            block, width = self.sequence_block(width)
            layers.append(block)
        return nn.Sequential(*layers, nn.Linear(width, 4))

    def sequence_block(self, width: int) -> tuple[nn.Module, int]:
        kind = self.random.choice(SEQUENCE_BLOCKS)
        inner = 2 * self.random.randint(1, 8)
        if kind == "layer norm":
            return nn.LayerNorm(width), width
        if kind == "attention":
            return Residual(Attention(width, inner), nn.Identity(), self.flip()), width
        if kind == "gated":
            chunked, between = self.chunked(2, inner)
            return nn.Sequential(nn.Linear(width, inner), chunked, nn.Linear(between, 8)), 8
        if kind == "chunk" and width % 2 == 0:
            return self.chunked(-1, width)
        if kind == "split" and width > 1:
            at = self.random.randint(1, width - 1)
            return Split(2, [at, width - at], [nn.Linear(at, inner), nn.Identity()]), inner + width - at
        branch = nn.Sequential(nn.Linear(width, inner, bias=self.flip()), self.activation(), nn.Linear(inner, width))
        return Residual(branch, nn.Identity(), self.flip()), width
