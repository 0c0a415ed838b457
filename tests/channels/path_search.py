"""The slow and obvious way to find the weights on a live path: run the network."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from tests.channels.networks import UNDERSTOOD, Architect, randomize


def live_weights(model: nn.Module, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """Mark the nonzero weights whose input channel differs between two inputs, and whose output has a gradient."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear | _ConvNd)}
    seen: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in layers}
    for name, module in layers.items():

        def look(_: nn.Module, inputs: tuple[Tensor], output: Tensor, name: str = name) -> Tensor:
            seen[name].append((inputs[0].detach().clone(), output))
            output.requires_grad_().retain_grad()
            return output.clone()  # the next operation may work in place

        module.register_forward_hook(look)
    for _ in range(2):
        output = model(torch.randn(1, *shape, dtype=torch.float64))
        (output * torch.randn_like(output)).sum().backward()
    answer = {}
    for name, module in layers.items():
        ((first, out), (second, _)) = seen[name]
        differs = (first != second).flatten(2).any(2)[0] if first.ndim > 2 else (first != second)[0]
        assert out.grad is not None or not out.requires_grad
        grad = torch.zeros_like(out) if out.grad is None else out.grad
        matters = (grad != 0).flatten(2).any(2)[0] if grad.ndim > 2 else (grad != 0)[0]
        weight = module.weight.transpose(0, 1) if isinstance(module, _ConvTransposeNd) else module.weight
        groups = 1 if isinstance(module, nn.Linear) else module.groups
        live = torch.zeros(weight.shape, dtype=torch.bool)
        for o in range(weight.shape[0]):
            start = o // (weight.shape[0] // groups) * weight.shape[1]
            for i in range(weight.shape[1]):
                if matters[o] and differs[start + i]:
                    live[o, i] = weight[o, i] != 0
        answer[f"{name}.weight"] = live.transpose(0, 1) if isinstance(module, _ConvTransposeNd) else live
    return answer


SMOOTH = (nn.Softplus, nn.Sigmoid, nn.Identity)


def smooth_network(seed: int, sparsity: float, blocks: tuple[str, ...] = UNDERSTOOD) -> nn.Module:
    """Return a network without functions that are flat somewhere, where it would seem dead by chance."""
    model = randomize(Architect(seed, SMOOTH, blocks).network(), sparsity, seed).double().eval()
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.MaxPool2d | nn.AdaptiveMaxPool2d):
            adaptive = isinstance(module, nn.AdaptiveMaxPool2d)
            model.set_submodule(name, nn.AdaptiveAvgPool2d(2) if adaptive else nn.AvgPool2d(3, 1, padding=1))
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear | _ConvNd):
                module.weight.mul_(0.2)
    return model
