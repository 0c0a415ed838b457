"""One-shot pruning: a trained network, a few calibration batches, and no training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..criteria import Criterion, lamp
from ..events import warn_of_dead_layers
from ..limits import Floor, Sparsity
from ..modules import unwrapped
from ..numerics import wide
from ..runtime import attachments
from ..runtime.batches import Batches, LossFunction
from ..runtime.scoring import name_of
from ..units import Granularity, GranularityChoice, Reduction, Target, Units, as_granularity, units_for
from ..weights import Patterns, Weight, find_weights
from .backup import unchanged_on_failure
from .calibration import Stage, Walk, batch_norms, calibrating
from .kept_outputs import give_back_memory
from .layer_pruning import Errors, LayerPruning
from .layers import Layer, Moments, layers_of, with_inputs
from .recalibration import observe_norms, write_statistics
from .report import PrunedLayer, PruneReport
from .scoring import MethodName, ScoreOf, Scoring
from .selection import Pool, Scope, channel_units, counts_by_layer, masks_after, pools_of, ranking
from .solvers import saliency

Progress = Callable[[int, int, str], None]
"""Called with the number of layers that are done, the number of all, and the name of the next."""


def prune(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    sparsity: Sparsity,
    method: MethodName | Criterion = "obs",
    granularity: GranularityChoice = "weight",
    reduce: Reduction = "mean",
    scope: Scope | None = None,
    floor: Floor = 0,
    target: Target = "weights",
    round_to: int = 1,
    residual: bool = False,
    include: Patterns | None = None,
    exclude: Patterns | None = None,
    loss_fn: LossFunction | None = None,
    rounds: int = 1,
    recalibrate: bool = True,
    block: int = 2048,
    damping: float = 0.01,
    seed: int = 0,
    progress: Progress | None = None,
) -> PruneReport:
    """Prune a trained network in place, without training it.

    Layers are pruned in the order in which they are called, each with the inputs that it has in the network pruned so
    far. Batches are read several times; one layer's Hessian is in memory at a time, or those of the layers that read
    the same inputs. If anything fails, the model is as it was before.

        >>> report = flipout.prune(model, loader, sparsity=0.75)
        >>> report.nonzero, report.prunable
        (64, 256)

    Args:
        model: the network, in any mode; it may be compiled or data-parallel.
        batches: what the model is called with: tensors, tuples of inputs (a target after them is used only by
            `loss_fn`), or dictionaries of keyword arguments. An iterator is read into a list.
        sparsity: the share of weights that are pruned, or shares by name pattern: `{"classifier.*": 0.5, "*": 0.8}`.
            The first pattern that matches counts. Weights that no pattern matches are left alone.
        method: "obs" (Optimal Brain Surgeon: the remaining weights make up for those that are pruned), "wanda"
            (`|w| * norm(x)`), "magnitude", "fisher" (needs `loss_fn`), or a criterion: a function of `weight`,
            `input_norm`, `hessian_diagonal`, `fan_in`, `uniform`, `grad` and `fisher`.
        granularity: what is pruned as one unit: "weight", "kernel", "channel", a block `(rows, columns)`, or a pattern
            such as "2:4".
        reduce: how the scores of the weights of a unit become its score.
        scope: "global" ranks all weights of one sparsity together; "layer" prunes each layer by the same share,
            "output" each output too. By default "output" for Wanda, and otherwise "global".
        floor: the least number (an integer) or share (a float) of weights that each layer keeps, or such numbers by
            name pattern.
        target: what the sparsity is a share of, with `granularity="channel"`: "weights", "macs" (the multiply-adds with
            weights), "parameters" (of the whole model), or "latency" (measured with the first batch).
        round_to: with `granularity="channel"`, the number of channels that a layer keeps is a multiple of this.
        residual: with `granularity="channel"`, whether channels that norms mix are pruned too, such as those of the
            residual stream of a transformer.
        include: which weights to prune in place of the usual ones. Methods that need the inputs of a weight leave out
            those of recurrent modules, `nn.MultiheadAttention` and stacked experts, and warn.
        exclude: which weights to leave out.
        loss_fn: the loss of an output and a target, for criteria that use gradients.
        rounds: the number of rounds. Each prunes the same share of the remaining weights, with new statistics.
        recalibrate: whether the statistics of batch norms are estimated again; see `flipout.recalibrate`.
        block: the most inputs that one Hessian spans. A wider layer has a block-diagonal Hessian.
        damping: the share of the mean of the Hessian's diagonal that is added to it.
        seed: the seed of the statistic `uniform`.
        progress: a function that is called before each layer with the number of layers done, the number of all layers,
            and the name of the layer.
    """
    began = time.perf_counter()
    network = unwrapped(model)
    weights = find_weights(model, None, include, exclude)
    attachments.refuse_second(weights)
    unit = as_granularity(granularity, reduce, target, round_to, residual)
    scope = read_scope(scope, method, unit)
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}; give a whole number of at least 1")
    scoring = None if method == "obs" else Scoring(method, loss_fn, seed)
    layers = layers_of(network, weights, block, unit.numbers[1] if unit.kind == "pattern" else 1)
    name = method if isinstance(method, str) else name_of(method)
    if scoring is None or scoring.needs_inputs:
        layers = with_inputs(layers, name, chosen=include is not None)
    pools = pools_of(sparsity, [layer.weight for layer in layers], floor, rounds, target)
    weights = [weight for pool in pools for weight in pool.weights]
    layers = [layer for layer in layers if layer.weight in weights]
    check_units(unit, pools)
    read = Batches(batches, model)
    norms = batch_norms(network) if recalibrate else []
    job = Job(network, read, layers, pools, LayerPruning(network, unit, scope, scoring, damping), bool(norms), progress)
    changed = [
        *(layer.weight.parameter for layer in layers),
        *(layer.bias for layer in layers if layer.bias is not None),
    ]
    changed = list(network.parameters()) if residual else changed
    with unchanged_on_failure([*changed, *(buffer for _, norm in norms for buffer in norm.buffers())]):
        for number in range(rounds):
            job.round(number, rounds)
        if norms:
            write_statistics(observe_norms(network, read, norms))
    if dead := [weight.name for weight in weights if weight.size and not weight.kept]:
        warn_of_dead_layers(dead, 0)
    return PruneReport(name, job.report(), len(norms), time.perf_counter() - began, job.units.status().strip())


def read_scope(scope: Scope | None, method: str | Criterion, granularity: Granularity) -> Scope:
    if scope is None:
        return "output" if method == "wanda" and granularity.kind == "weight" else "global"
    if scope not in ("global", "layer", "output"):
        raise ValueError(f"scope is {scope!r}; give 'global', 'layer' or 'output'")
    if scope == "output" and granularity.kind not in ("weight", "pattern"):
        raise ValueError(f"scope='output' is incompatible with granularity={str(granularity)!r}: give scope='layer'")
    return scope


def check_units(granularity: Granularity, pools: list[Pool]) -> None:
    """Refuse a sparsity that the units cannot have, before anything is computed."""
    if granularity.kind == "channel" and len(pools) > 1:
        raise ValueError(
            "granularity='channel' takes one sparsity, because channels belong to several layers: limit layers with "
            "floor="
        )
    for pool in pools:
        if granularity.kind != "channel":
            share = 1 - pool.keeps[-1] / sum(weight.size for weight in pool.weights)
            units_for(granularity, pool.weights, share, per_layer=False)


class Job:
    """The rounds of one call of `prune`."""

    def __init__(
        self,
        network: nn.Module,
        batches: Batches,
        layers: list[Layer],
        pools: list[Pool],
        pruning: LayerPruning,
        norms: bool,
        progress: Progress | None,
    ) -> None:
        self.network, self.batches, self.layers, self.pools = network, batches, layers, pools
        self.pruning, self.norms, self.progress = pruning, norms, progress
        self.of = {layer.weight: layer for layer in layers}
        self.seconds = dict.fromkeys(layers, 0.0)
        self.errors = dict.fromkeys(layers, Errors(0.0, 0.0))
        self.channels, self.units = pruning.granularity.kind == "channel", Units()
        if self.channels:
            per_layer = pruning.scope == "layer"
            self.units = channel_units(pools[0], pruning.granularity, batches, per_layer=per_layer)

    def round(self, number: int, rounds: int) -> None:
        """Prune every layer once, to the counts of a round."""
        scoring = self.pruning.scoring
        if scoring is not None:
            scoring.start(self.batches, list(self.of))
        with calibrating(self.network, norms=self.norms):
            walk = Walk(self.network, self.batches, [layer for layer in self.layers if layer.modules])
            score = self._scores(walk)
            if self.channels:
                masks = self._channel_masks(number, score)
                self._visit(
                    walk, number, rounds, lambda layer, seen: self.pruning.remove_channels(layer, seen, masks[layer])
                )
                self._remove(masks)
                self.units.hold_zeros(self.network)
                return
            keeps: dict[Weight, int] = {}
            floors: dict[Weight, int] = {}
            for pool in self.pools:
                keeps |= counts_by_layer(
                    self.network, pool, pool.keeps[number], self.pruning.scope, self.pruning.granularity, score
                )
                floors |= dict(zip(pool.weights, pool.floors, strict=True))

            def change(layer: Layer, seen: Moments | None) -> Errors:
                errors = self.pruning.prune(layer, seen, keeps[layer.weight], floors[layer.weight])
                if number == rounds - 1:
                    del layer.weight.mask  # a byte for each weight, which nothing reads any more
                return errors

            self._visit(walk, number, rounds, change)

    def _visit(self, walk: Walk, number: int, rounds: int, change: Callable[[Layer, Moments | None], Errors]) -> None:
        """Observe and change the layers, stage by stage, and after them those whose inputs are not observed."""
        done = number * len(self.layers)
        walk.restart()
        for stage in walk.stages:
            self._show(done, rounds, stage)
            began = time.perf_counter()
            seen = walk.observe(stage)
            for layer in stage.layers:
                give_back_memory()
                self.errors[layer] = change(layer, seen.pop(layer))
                now = time.perf_counter()
                self.seconds[layer] += now - began
                began = now
            done += len(stage.layers)
        give_back_memory()
        for layer in self.layers:
            if not layer.modules:
                self.errors[layer] = change(layer, None)

    def _show(self, done: int, rounds: int, stage: Stage) -> None:
        if self.progress is not None:
            self.progress(done, rounds * len(self.layers), stage.layers[0].name)

    def _scores(self, walk: Walk) -> ScoreOf:
        """The scores of all layers, comparable with each other, from the network as it is before a round.

        What is kept of each layer is one number for each input.
        """
        pruning, scoring = self.pruning, self.pruning.scoring
        is_local = (pruning.scope != "global" or pruning.granularity.kind == "pattern") and not self.channels
        if is_local or (scoring is not None and not scoring.needs_inputs):
            return lambda weight: self._score(weight, {})
        diagonals: dict[Layer, Tensor] = {}
        for stage in walk.surveys():
            for layer, moments in walk.observe(stage).items():
                is_obs = scoring is None
                diagonals[layer] = pruning.inverse_diagonal(moments).double() if is_obs else moments.diagonal().clone()
        walk.restart()
        return lambda weight: self._score(weight, diagonals)

    def _score(self, weight: Weight, diagonals: dict[Layer, Tensor]) -> Tensor:
        layer = self.of[weight]
        if self.pruning.scoring is not None:
            return self.pruning.scoring.scores(layer, diagonals.get(layer))
        matrix = wide(layer.matrix(weight.parameter.detach()))
        # Relative to what is left of the layer, as in LAMP: no layer loses its last weight before all others do.
        return lamp(layer.tensor(saliency(matrix, diagonals[layer])).sqrt())

    def _channel_masks(self, number: int, score: ScoreOf) -> dict[Layer, Tensor]:
        (pool,) = self.pools
        keep = self.units.keep(pool.plan[number], self.network)
        masks = masks_after(self.units, ranking(self.network, pool.weights, score, pool.floors), keep)
        return {self.of[weight]: mask for weight, mask in zip(pool.weights, masks, strict=True)}

    @torch.no_grad()
    def _remove(self, masks: dict[Layer, Tensor]) -> None:
        """Zero the outputs of removed channels, which no layer reads any more."""
        for layer, mask in masks.items():
            layer.weight.parameter.mul_(mask)
            layer.weight.mask.copy_(mask)
            layer.weight.kept = int(mask.sum())

    def report(self) -> tuple[PrunedLayer, ...]:
        return tuple(
            PrunedLayer(layer.name, layer.weight.size, layer.weight.kept, *self.errors[layer], self.seconds[layer])
            for layer in sorted(self.layers, key=lambda layer: layer.weight.number)
        )
