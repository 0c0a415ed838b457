"""Convolutions of all shapes, and what torch computes for them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from flipout.kernels.geometry import Convolution


def pairs(low: int, high: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(low, high), st.integers(low, high))


convolutions = st.builds(
    Convolution,
    channels=pairs(1, 9),
    image=pairs(1, 20),
    kernel=pairs(1, 5),
    stride=pairs(1, 3),
    before=pairs(0, 3),
    after=pairs(0, 3),
    dilation=pairs(1, 2),
).filter(lambda convolution: min(convolution.out) > 0)


@dataclass
class Case:
    """A convolution with random images, weights and gradients."""

    convolution: Convolution
    images: Tensor
    weight: Tensor
    bias: Tensor
    gradient: Tensor

    @classmethod
    def draw(cls, convolution: Convolution, images: int, density: float, seed: int = 0) -> Case:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        inputs, outputs = convolution.channels
        kept = torch.rand((outputs, inputs, *convolution.kernel), generator=generator) < density
        return cls(
            convolution,
            normal(images, inputs, *convolution.image),
            normal(*kept.shape) * kept,
            normal(outputs),
            normal(images, outputs, *convolution.out),
        )

    def dense(self) -> tuple[Tensor, Tensor, Tensor]:
        """The output, the gradient of the images, and that of the weight, by torch in double precision."""
        images, weight = (tensor.double().requires_grad_() for tensor in (self.images, self.weight))
        (top, left), (bottom, right) = self.convolution.before, self.convolution.after
        padded = functional.pad(images, (left, right, top, bottom))
        stride, dilation = self.convolution.stride, self.convolution.dilation
        output = functional.conv2d(padded, weight, self.bias.double(), stride, 0, dilation)
        output.backward(self.gradient.double())
        assert images.grad is not None
        assert weight.grad is not None
        kept = self.weight != 0
        return output.detach().float(), images.grad.float(), torch.where(kept, weight.grad.float(), 0)
