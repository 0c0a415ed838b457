"""One-shot pruning against the textbook's Wanda and SparseGPT, and a decoder of 50 million weights.

`python -m benchmarks.one_shot` prunes the decoder alone and prints seconds and memory.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import flipout
from flipout.export.costs import MemoryCounter

from .timing import Times, interleaved

SPARSITY = 0.5
PRUNE: dict[str, Any] = {"wanda": "output", "obs": "layer"}
"""The methods that textbooks have, with the scope that they have there."""


@dataclass(frozen=True)
class Perceptron:
    """The size of the network, and of the calibration data."""

    sizes: tuple[int, ...] = (512, 1024, 1024, 512)
    batches: int = 16
    examples: int = 128

    def network(self) -> nn.Sequential:
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for inputs, outputs in zip(self.sizes, self.sizes[1:], strict=False):
            layers += [nn.Linear(inputs, outputs, bias=False), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def data(self) -> list[Tensor]:
        """Inputs that are correlated, as those of real networks are."""
        random = torch.Generator().manual_seed(1)
        width = self.sizes[0]
        mixed = torch.randn(width, width, generator=random) * torch.rand(width, 1, generator=random).square()
        return [torch.randn(self.examples, width, generator=random) @ mixed for _ in range(self.batches)]


@torch.no_grad()
def textbook(model: nn.Sequential, batches: Sequence[Tensor], method: str) -> None:
    """Wanda and SparseGPT as their authors have them: layer by layer, with the inputs that pruned layers give."""
    for place, layer in enumerate(model):
        if isinstance(layer, nn.Linear):
            inputs = torch.cat([model[:place](x) for x in batches])
            (wanda if method == "wanda" else sparsegpt)(layer, inputs)


def wanda(layer: nn.Linear, inputs: Tensor) -> None:
    scores = layer.weight.abs() * inputs.square().mean(0).sqrt()
    order = torch.sort(scores, dim=-1, stable=True).indices[:, : int(scores.shape[1] * SPARSITY)]
    layer.weight.scatter_(1, order, 0.0)


def sparsegpt(layer: nn.Linear, inputs: Tensor, block: int = 128, damping: float = 0.01) -> None:
    weight = layer.weight.clone()
    hessian = 2 / len(inputs) * inputs.T @ inputs
    hessian.diagonal().add_(damping * hessian.diagonal().mean())
    inverse = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(hessian)), upper=True)
    for start in range(0, weight.shape[1], block):
        end = min(start + block, weight.shape[1])
        part, root = weight[:, start:end].clone(), inverse[start:end, start:end]
        errors = torch.zeros_like(part)
        scores = part.square() / root.diagonal().square()
        mask = scores <= scores.flatten().sort().values[int(scores.numel() * SPARSITY) - 1]
        for i in range(end - start):
            kept = part[:, i].masked_fill(mask[:, i], 0)
            errors[:, i] = (part[:, i] - kept) / root[i, i]
            part[:, i:] -= errors[:, i : i + 1] * root[i, i:]
            part[:, i] = kept
        weight[:, start:end] = part
        weight[:, end:] -= errors @ inverse[start:end, end:]
    layer.weight.copy_(weight)


def ours(model: nn.Sequential, batches: Sequence[Tensor], method: Any) -> None:
    flipout.prune(model, batches, sparsity=SPARSITY, method=method, scope=PRUNE[method])


@torch.no_grad()
def measure(size: Perceptron, repetitions: int) -> tuple[Times, dict[str, dict[str, float]]]:
    """Times of each method, ours and the textbook's; and, as ratios of ours to theirs, the error of the outputs, the
    memory, and the share of equal masks."""
    model, batches = size.network(), size.data()
    works: dict[str, Callable[[], object]] = {}
    figures: dict[str, dict[str, float]] = {name: {} for name in ("error", "memory", "same_masks")}
    for method in PRUNE:
        pruned = {}
        for who, function in (("ours", ours), ("textbook", textbook)):
            work = _on_a_copy(function, model, batches, method)
            works[f"{who}_{method}"] = work
            counter = MemoryCounter({each.untyped_storage()._cdata for each in (*model.parameters(), *batches)})
            with counter:
                pruned[who] = work()
            figures["memory"][f"{who}_{method}"] = counter.peak
        x = torch.cat(batches)
        error = {who: float((each(x) - model(x)).square().mean()) for who, each in pruned.items()}
        same = [
            (one != 0) == (two != 0)
            for one, two in zip(pruned["ours"].parameters(), pruned["textbook"].parameters(), strict=True)
        ]
        figures["error"][method] = error["ours"] / error["textbook"]
        figures["same_masks"][method] = float(torch.cat([each.flatten() for each in same]).float().mean())
        memory = figures["memory"]
        memory[method] = memory.pop(f"ours_{method}") / memory.pop(f"textbook_{method}")
    return interleaved(works, repetitions, warm_up=1), figures


def _on_a_copy(
    function: Callable[..., None], model: nn.Sequential, batches: Sequence[Tensor], method: str
) -> Callable[[], nn.Sequential]:
    def work() -> nn.Sequential:
        pruned = copy.deepcopy(model)
        function(pruned, batches, method)
        return pruned

    return work


# A decoder.


@dataclass(frozen=True)
class Decoder:
    """The size of a decoder, and of the calibration data."""

    width: int = 512
    features: int = 2048
    blocks: int = 12
    sequences: int = 64
    tokens: int = 128


def prune_decoder(size: Decoder, method: Any = "obs") -> dict[str, float]:
    """Prune a decoder to half of its weights; the seconds, and the memory that the process takes beyond the model.

    `goal` is one and a half times the largest block with its Hessians. Memory counts from the moment before pruning,
    when the model is built and was called once. In a process that took more before, such as that of other benchmarks,
    part of it may be there already: `measure_decoder` starts one of its own.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=size.width,
        intermediate_size=size.features,
        num_hidden_layers=size.blocks,
        num_attention_heads=8,
        tie_word_embeddings=True,
    )
    model: nn.Module = LlamaForCausalLM(config).eval()
    batches = [{"input_ids": torch.randint(1024, (4, size.tokens))} for _ in range(size.sequences // 4)]
    with torch.no_grad():
        model(**batches[0], use_cache=False)
    forget_peak()
    before = memory("VmRSS")
    began = time.perf_counter()
    report = flipout.prune(model, batches, sparsity=SPARSITY, method=method, scope="layer")
    seconds = time.perf_counter() - began
    block = 4 * (4 * size.width**2 + 3 * size.width * size.features)
    hessians = 4 * (3 * size.width**2 + size.features**2)
    return {
        "weights": report.prunable,
        "sparsity": report.sparsity,
        "seconds": seconds,
        "megabytes": (memory("VmHWM") - before) / 1e6,
        "goal": 1.5 * (block + hessians) / 1e6,
    }


def measure_decoder() -> dict[str, float]:
    """`prune_decoder` in a process of its own."""
    printed = subprocess.run([sys.executable, "-m", __name__], check=True, stdout=subprocess.PIPE, text=True).stdout
    result: dict[str, float] = json.loads(printed)
    return result


def memory(kind: str) -> int:
    """The bytes of memory that the process has now (`VmRSS`), or has had at most (`VmHWM`).

    `resource.getrusage` would not do: the peak of the process that started this one counts there.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{kind}:"))


def forget_peak() -> None:
    """Let `VmHWM` count from now on."""
    Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    print(json.dumps(prune_decoder(Decoder()), indent=2))
