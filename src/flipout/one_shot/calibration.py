"""Calibration: passes over the batches that observe the inputs of layers, in the order in which layers are called.

A pass stops after the last layer that it observes. In a chain of blocks, such as those of a decoder, it also starts
late: the outputs of the block before are kept for all batches, and the blocks up to there are not computed again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle

from ..channels.comparison import output_leaves, output_tensors
from ..channels.record import without_fast_paths
from ..runtime.batches import Batches, Call, Stop
from ..runtime.passes import without_trace
from .kept_outputs import KeptOutputs, clone, give_back_memory
from .layers import Layer, Moments

CACHE = 1 << 32
"""The most bytes of outputs of a block that are kept. With larger ones, every pass starts at the inputs."""
TOGETHER = 1 << 26
"""The most bytes of Hessians that one pass collects for a survey, unless a single one is larger."""


def batch_norms(network: nn.Module) -> list[tuple[str, _BatchNorm]]:
    """The batch norms with running statistics, by name."""
    named = network.named_modules()
    return [(name, each) for name, each in named if isinstance(each, _BatchNorm) and each.running_mean is not None]


@contextmanager
def calibrating(network: nn.Module, *, norms: bool) -> Iterator[None]:
    """Run a network in evaluation mode, without gradients. Modes, buffers and the random state are restored.

    With `norms`, batch norms use the statistics of the batch, as they will be estimated again.
    """
    modes = [(module, module.training) for module in network.modules()]
    try:
        network.eval()
        for _, norm in batch_norms(network) if norms else ():
            norm.train()
        with without_fast_paths(), without_trace(network), torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def hooked(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Remove hooks at the end."""
    with ExitStack() as stack:
        for handle in handles:
            stack.callback(handle.remove)
        yield


@dataclass
class Stage:
    """Layers that are observed in one pass.

    Args:
        layers: the layers.
        level: how many blocks of the chain come before them.
        calls: how many times they are called in a pass.
        alike: layers that have the same inputs as another one of the stage, whose moments they share.
    """

    layers: list[Layer]
    level: int
    calls: int
    alike: dict[Layer, Layer] = field(default_factory=dict)

    @property
    def hessian_bytes(self) -> int:
        return sum(layer.hessian_bytes for layer in self.layers if layer not in self.alike)

    def with_(self, other: Stage) -> Stage:
        return Stage(self.layers + other.layers, self.level, self.calls + other.calls, {**self.alike, **other.alike})


class Walk:
    """Goes through the layers of a network in the order of their calls.

    Args:
        network: the network.
        batches: the calibration batches.
        layers: the layers to observe.
    """

    def __init__(self, network: nn.Module, batches: Batches, layers: Sequence[Layer]) -> None:
        self.network, self.batches = network, batches
        record = Record(network, batches, layers)
        self.blocks = record.chain()
        self._level, self._outputs, self._batch = 0, KeptOutputs(batches.number), 0
        self._prints: dict[int, tuple[float, ...]] = {}
        self._kept: Any = None
        self._pass_on: Callable[[int], Any] = lambda _: clone(self._kept)
        if self.blocks and not self._skips_well():
            self.blocks = []
        self.stages = record.stages(self.blocks)

    def restart(self) -> None:
        """Start again with the first layer."""
        self._level, self._outputs = 0, KeptOutputs(self.batches.number)

    def surveys(self) -> list[Stage]:
        """The stages, with as many together as their Hessians have room for, if no layer is changed in between."""
        merged: list[Stage] = []
        for stage in self.stages:
            fits = merged and merged[-1].hessian_bytes + stage.hessian_bytes <= TOGETHER
            if fits and merged[-1].level == stage.level:
                merged[-1] = merged[-1].with_(stage)
            else:
                merged.append(stage)
        return merged

    def observe(self, stage: Stage) -> dict[Layer, Moments]:
        """The moments of the inputs of the layers of a stage, from the network as it is now."""
        self._advance(stage.level)
        give_back_memory()
        moments = {each: Moments(each, self.batches.number) for each in stage.layers if each not in stage.alike}
        left = 0

        def note(layer: Layer) -> Callable[..., None]:
            def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                nonlocal left
                if layer in moments:
                    moments[layer].add(module, output_tensors((args, kwargs))[0])
                left -= 1
                if not left:
                    raise Stop

            return hook

        hooks = [
            module.register_forward_pre_hook(note(layer), with_kwargs=True)
            for layer in stage.layers
            for module in layer.modules
        ]
        with hooked(hooks):
            for _ in self._passes(self._level):
                left = stage.calls
        return {layer: moments[stage.alike.get(layer, layer)] for layer in stage.layers}

    def _passes(self, level: int, first: bool = False) -> Iterator[Any]:
        """Call the network with each batch; yields before each call. The first blocks return what is kept of them."""
        with ExitStack() as stack:
            for number, block in enumerate(self.blocks[:level]):
                stack.enter_context(replaced(block, lambda *_, number=number, **__: self._pass_on(number)))
            for batch, call in enumerate(self.batches):
                self._batch = batch
                if self.blocks:
                    self._check_batch(batch, call)
                self.result = None
                give_back_memory()
                if level and not first:
                    self._kept = self._outputs.get(batch)
                yield
                self.result = self.batches.run(batch, call)
                if first:
                    return
        self._kept = None

    def _check_batch(self, number: int, call: Call) -> None:
        """Refuse a batch that was another one before: what is kept of blocks belongs to that."""
        tensors = output_tensors((call.args, call.kwargs))
        found = tuple(float(each.double().nan_to_num().sum()) for each in tensors)
        if self._prints.setdefault(number, found) != found:
            raise ValueError(
                f"calibration batch {number} changed when it was read again. Does the loader shuffle, or change "
                "images at random? Pass list(loader)"
            )

    def _advance(self, level: int) -> None:
        """Compute the outputs of the block before a level, and keep them in place of earlier ones."""
        assert level >= self._level, "restart() goes back"
        if level == self._level:
            return

        def keep(module: nn.Module, args: Any, output: Any) -> None:
            self._outputs.put(self._batch, output)  # what was there has been read
            raise Stop

        with hooked([self.blocks[level - 1].register_forward_hook(keep)]):
            for _ in self._passes(self._level):
                pass
        self._level = level

    def _skips_well(self) -> bool:
        """Whether the last block needs nothing but the outputs of the one before it.

        The outputs of all other blocks are replaced by NaN. If the network uses them elsewhere, it has other outputs.
        """
        outputs: list[Any] = []
        with hooked([self.blocks[-2].register_forward_hook(lambda _, __, output: outputs.append(clone(output)))]):
            for _ in self._passes(0, first=True):
                pass
        expected, usual = output_leaves(self.result), self._pass_on
        broken = pytree.tree_map_only(Tensor, lambda each: each * torch.nan, outputs[0])
        self._pass_on = lambda number: clone(outputs[0] if number == len(self.blocks) - 2 else broken)
        try:
            for _ in self._passes(len(self.blocks) - 1, first=True):
                pass
            found = output_leaves(self.result)
        except ValueError:
            return False
        finally:
            self._pass_on = usual
        same = (torch.equal(one, other) for one, other in zip(expected, found, strict=False) if isinstance(one, Tensor))
        return len(expected) == len(found) and all(same)


@contextmanager
def replaced(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Call another function in place of a module's own `forward`."""
    before = module.__dict__.get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before


class Record:
    """What happens in a pass with the first batch: the calls of layers and of blocks, and who reads whose outputs."""

    def __init__(self, network: nn.Module, batches: Batches, layers: Sequence[Layer]) -> None:
        self.layers, self.number = list(layers), batches.number
        self.calls: list[tuple[Layer, weakref.ref[Tensor]]] = []
        """Each call of a layer, with its input."""
        self.children: list[tuple[nn.Module, int, bool, int]] = []
        """Each end of a call of a child: its container, its number, whether it read the child before, output bytes."""
        self.begun: dict[nn.Module, list[tuple[int, int, int]]] = {}
        """For each container the begins and ends of its children, as numbers of calls of layers."""
        self._latest: dict[nn.Module, weakref.ref[Tensor]] = {}
        hooks: list[RemovableHandle] = []
        for container in network.modules():
            if not isinstance(container, (nn.ModuleList, nn.Sequential)) or len(container) < 2:
                continue
            if any(isinstance(child, torch.jit.ScriptModule) for child in container):
                continue  # which takes no such hooks
            for number, child in enumerate(container):
                hooks += self._watch(container, number, child)
        for layer in layers:  # after those of blocks: a block may be a layer
            call_of = self._call_of(layer)
            hooks += [module.register_forward_pre_hook(call_of, with_kwargs=True) for module in layer.modules]
        with hooked(hooks):
            batches.run(0, next(iter(batches)))

    def _call_of(self, layer: Layer) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.calls.append((layer, weakref.ref(output_tensors((args, kwargs))[0])))

        return hook

    def _watch(self, container: nn.Module, number: int, child: nn.Module) -> list[RemovableHandle]:
        begun: list[tuple[int, bool]] = []

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            latest = self._latest.get(container, lambda: None)()
            leaves = output_leaves((args, kwargs))
            begun.append((len(self.calls), latest is not None and any(leaf is latest for leaf in leaves)))

        def after(module: nn.Module, args: Any, output: Any) -> None:
            tensors = output_tensors(output)
            first, reads = begun.pop()
            if tensors:
                self._latest[container] = weakref.ref(tensors[0])
                size = sum(each.numel() * each.element_size() for each in tensors)
                self.children.append((container, number, reads, size))
                self.begun.setdefault(container, []).append((number, first, len(self.calls)))

        return [
            child.register_forward_pre_hook(before, with_kwargs=True),
            child.register_forward_hook(after),
        ]

    def chain(self) -> list[nn.Module]:
        """The blocks of the longest chain: each is called once, and reads the outputs of the one before it."""
        best: list[nn.Module] = []
        most = 1
        for container, spans in self.begun.items():
            own = [(number, reads, size) for each, number, reads, size in self.children if each is container]
            in_order = [number for number, _, _ in own] == list(range(len(list(container.children()))))
            linked = all(reads for _, reads, _ in own[1:])
            small = max(size for _, _, size in own) * self.number <= CACHE
            with_layers = sum(first < last for _, first, last in spans)
            if in_order and linked and small and with_layers > most:
                best, most = list(container.children()), with_layers
                self._spans = spans
        return best

    def stages(self, blocks: Sequence[nn.Module]) -> list[Stage]:
        """The layers in the order of their first calls. Those that read one tensor, one after the other, are together;
        those that were not called are last."""
        ends = [last for _, _, last in self._spans] if blocks else []
        counts: dict[Layer, int] = {}
        for layer, _ in self.calls:
            counts[layer] = counts.get(layer, 0) + 1
        stages: list[Stage] = []
        seen: dict[Layer, weakref.ref[Tensor]] = {}
        for place, (layer, read) in enumerate(self.calls):
            if layer in seen:
                continue
            seen[layer] = read
            level = sum(end <= place for end in ends)
            stage = Stage([layer], level, counts[layer])
            first = stages[-1].layers[0] if stages else None
            if first is not None and counts[first] == counts[layer] == 1 and seen[first] is read:
                alike = not isinstance(layer.module, _ConvNd) and (layer.bias is None) == (first.bias is None)
                if alike and layer.chunks == first.chunks:
                    stage.alike[layer] = stages[-1].alike.get(first, first)
                stages[-1] = stages[-1].with_(stage)
            else:
                stages.append(stage)
        return stages + [Stage([layer], len(blocks), 1) for layer in self.layers if layer not in counts]
