"""Trainings on sharded weights, each compared with the same training on one device. Run as a script by each rank."""

from __future__ import annotations

import json
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import flipout
from flipout.integrations.session import PrunerRecipe, PruningSession
from flipout.views import shard
from tests.views.sharded_training import (
    LAYOUTS,
    SUMMING,
    compare,
    fsdp,
    gathered,
    hsdp,
    network,
    optimizer_of,
    prune,
    train,
)


def refused(message: str, act: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        act()


def like_one_device(layout: str, method: str, **options: Any) -> None:
    steps = {"compile": False, **options}
    flipout.Pruner.check_ranks = False  # every rank trains the reference by itself
    expected = prune(network(), method, **steps)
    train(expected)
    flipout.Pruner.check_ranks = True
    pruner = prune(LAYOUTS[layout](0), method, **steps)
    train(pruner)
    spread = layout in ("tensor-parallel", "both")
    summing = method in SUMMING or options.keys() & {"noise", "second_chances"}
    exact = not spread and not summing
    compare(pruner, expected, bits=exact)
    pruner.remove()


def layouts_of_elements() -> None:
    """The positions are those that torch gives the elements."""
    ranks = torch.distributed.get_world_size()
    line, grid = init_device_mesh("cpu", (ranks,)), init_device_mesh("cpu", (2, ranks // 2))
    for shape in ((7, 5), (1, 3), (4, 4), (9,), (3, 2, 5)):
        numbers = torch.arange(torch.Size(shape).numel()).view(shape)
        cuts: list[Any] = [(line, [Shard(dim)]) for dim in range(len(shape))]
        cuts += [(line, [Replicate()]), (grid, [Replicate(), Shard(0)]), (grid, [Shard(0), Replicate()])]
        cuts += [(grid, [Shard(0), Shard(len(shape) - 1)]), (grid, [Shard(len(shape) - 1), Shard(0)])]
        for mesh, placements in cuts:
            sharded = distribute_tensor(numbers, mesh, placements)
            assert torch.equal(shard.Shard(sharded, "x").elements(), sharded.to_local()), (shape, placements)


def equal_scores(layout: str) -> None:
    """All weights are equal: what goes is decided by their places alone."""

    def attached(model: nn.Module) -> flipout.Pruner:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(1.0)
        schedule = flipout.OneShot(0.6, 10, at=0)
        criterion = flipout.criteria.magnitude
        return flipout.Pruner(model, optimizer_of(model), criterion=criterion, schedule=schedule, floor=2)

    flipout.Pruner.check_ranks = False
    expected = attached(network())
    flipout.Pruner.check_ranks = True
    compare(attached(LAYOUTS[layout](0)), expected, bits=True)


def refusals() -> None:
    model = fsdp()
    batches = [(torch.zeros(2, 12).double(), torch.zeros(2, 1).double())]
    options: dict[str, Any] = {"batches": batches, "loss_fn": nn.functional.mse_loss}
    refused("DeepR", lambda: prune(model, "deep-r"))
    refused("SNIP", lambda: prune(model, "snip", **options))
    refused("dead_first=True", lambda: prune(model, "magnitude", dead_first=True))
    refused("granularity='2:4'", lambda: prune(model, "magnitude", granularity="2:4"))
    refused("aim test", lambda: flipout.AimTest(model, optimizer_of(model)))
    for parameter in model.parameters():
        assert isinstance(parameter, DTensor)
    example = torch.zeros(1, 12).double()
    refused("summary(example_input)", lambda: prune(model, "magnitude").summary(example))
    early = network()
    optimizer = optimizer_of(early)
    fully_shard(early)
    attach = partial(flipout.GlobalMagnitude, sparsity=0.5, steps=10)
    refused("create the optimizer", lambda: attach(early, optimizer))
    optimizer = optimizer_of(early)
    with torch.no_grad():
        early(example)  # leaves gathered weights in the model
    refused("reshard()", lambda: attach(early, optimizer))
    early.reshard()  # type: ignore[operator]
    attach(early, optimizer)


class RowSums(flipout.statistics.Statistic):
    """A statistic of rows, which shards cannot keep."""

    def __init__(self, weight: Tensor, place: flipout.statistics.Place) -> None:
        super().__init__(weight, place)
        self.state["sums"] = weight.sum(1)

    def value(self, weight: Tensor, step: int) -> Tensor:
        return weight.abs()


def own_statistic() -> None:
    model = fsdp()
    refused(
        "the statistic 'rows'",
        lambda: flipout.Pruner(
            model,
            optimizer_of(model),
            criterion=lambda rows: rows,
            schedule=flipout.Geometric(0.5, 10),
            statistics={"rows": RowSums},
        ),
    )


def own_criterion() -> None:
    """A criterion that looks at the whole weight gets the whole weight."""

    def criterion(weight: Tensor) -> Tensor:
        return weight.abs() / weight.square().sum()

    def attached(model: nn.Module) -> flipout.Pruner:
        schedule = flipout.Geometric(0.8, 40)
        return flipout.Pruner(model, optimizer_of(model), criterion=criterion, schedule=schedule)

    flipout.Pruner.check_ranks = False
    train(expected := attached(network()))
    flipout.Pruner.check_ranks = True
    train(pruner := attached(fsdp()))
    compare(pruner, expected, bits=True)


def not_finite() -> None:
    """A NaN on one rank stops all of them, and nothing is pruned."""
    pruner = prune(fsdp(), "magnitude")
    train(pruner, 3)
    before = pruner.nonzero
    with torch.no_grad():
        local = pruner.weights[0].local
        if torch.distributed.get_rank() == 0:
            local[0, 0] = torch.nan
    with pytest.raises(FloatingPointError, match=r"^0\.weight has NaN or infinite scores"):
        train(pruner, 8, skip=3)
    assert pruner.nonzero == before


def zeros_and_copies() -> None:
    pruner = prune(fsdp(), "magnitude")
    train(pruner)
    pruner.check()
    other = network(1)
    pruner.apply_to(other)  # an ordinary copy
    assert not pruner.lost_zeros(other)
    sharded = fsdp(2)
    assert pruner.lost_zeros(sharded)
    pruner.apply_to(sharded)
    pruner.check(sharded)
    for name, mask in pruner.masks.items():
        assert mask.shape == pruner.model.get_parameter(name).shape
        assert int(gathered(mask.to(torch.uint8)).sum()) == pruner.events[-1].kept[name]
        assert pruner.statistics["weight"][name].shape == mask.shape
    with torch.no_grad():
        for parameter in pruner.model.parameters():
            parameter.fill_(1.0)
    assert pruner.lost_zeros()
    pruner.apply_to(pruner.model)
    pruner.check()


def weights_are_gathered_when_asked() -> None:
    """After an evaluation FSDP2 leaves gathered weights in the model."""
    pruner = prune(fsdp(), "flipout")
    train(pruner, 25)
    with torch.no_grad():
        pruner.model(torch.zeros(1, 12).double())
    assert not any(isinstance(p, DTensor) for p in pruner.model[4].parameters())  # type: ignore[index]
    pruner.check()
    pruner.state_dict()
    str(pruner.summary())
    pruner.apply_to(pruner.model)
    train(pruner, skip=25)
    assert pruner.finished


def states() -> None:
    """Each rank loads its own state, or a whole one. That of one rank is refused on all, and changes nothing."""
    pruner = prune(fsdp(), "flipout")
    train(pruner, 25)
    state = pruner.state_dict()
    again = prune(pruner_model := fsdp(), "flipout").load_state_dict(state)
    assert (again.step, again.events, again.nonzero) == (25, pruner.events, pruner.nonzero)
    assert all(torch.equal(a.mask, b.mask) for a, b in zip(again.weights, pruner.weights, strict=True))
    whole_state: Any = {
        part: {name: gathered(tensor) for name, tensor in state[part].items()} if part == "masks" else state[part]
        for part in state
    }
    again.load_state_dict(whole_state)  # an ordinary tensor is cut
    assert all(torch.equal(a.mask, b.mask) for a, b in zip(again.weights, pruner.weights, strict=True))
    foreign = [{name: mask.to_local() for name, mask in state["masks"].items()}]
    torch.distributed.broadcast_object_list(foreign)
    wrong: dict[str, Any] = {}
    for weight in pruner.weights:
        wrong[weight.name] = weight.view.shown(foreign[0][weight.name])
    refused("masks", lambda: again.load_state_dict({**state, "masks": wrong}))
    assert all(torch.equal(a.mask, b.mask) for a, b in zip(again.weights, pruner.weights, strict=True))
    again.remove()
    session = PruningSession(PrunerRecipe("magnitude", 10, {"sparsity": 0.5}))
    start = partial(session.start, pruner_model, optimizer_of(pruner_model), lambda: 10, 0)
    refused("Prune", start)


def zeros_are_kept() -> None:
    """A pruned network is sharded and fine-tuned. A tensor of zeros alone is not pruned, on whatever rank it is."""

    def pruned(shard: bool) -> flipout.Pruner:
        model = network()
        with torch.no_grad():
            model.get_parameter("0.weight")[::3] = 0
            model.get_parameter("2.weight").zero_()
        if shard:
            fully_shard(model)
        return flipout.KeepZeros(model, optimizer_of(model))

    flipout.Pruner.check_ranks = False
    train(expected := pruned(shard=False))
    flipout.Pruner.check_ranks = True
    train(pruner := pruned(shard=True))
    compare(pruner, expected, bits=True)
    assert pruner.nonzero == 197 - 4 * 12


def a_step_exchanges_nothing() -> None:
    """Between prunings the ranks exchange nothing for FlipOut under FSDP2: they hold whole output channels."""
    exchanges: list[int] = []
    pruner = prune(fsdp(), "flipout")
    reduced = shard.Shard._reduced

    def counted(view: shard.Shard, *arguments: Any) -> Tensor:
        exchanges.append(pruner.step)
        return reduced(view, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard.Shard, "_reduced", counted)
        train(pruner)
    busy = {0, *(event.step for event in pruner.events)}  # the first step compares the weights of all ranks with zeros
    assert set(exchanges) <= busy
    assert set(range(1, 41)) - busy, "a pruning in every step"


def accumulation_and_clipping() -> None:
    def go(model: nn.Module) -> flipout.Pruner:
        pruner = prune(model, "flipout-paper", noise=None)
        generator = torch.Generator().manual_seed(1)
        for _ in range(40):
            for _ in range(2):
                x = torch.randn(16, 12, generator=generator, dtype=torch.float64)
                pruner.model(x).square().mean().backward()
            nn.utils.clip_grad_norm_(pruner.model.parameters(), 0.5)
            pruner.optimizer.step()
            pruner.optimizer.zero_grad()
        return pruner

    flipout.Pruner.check_ranks = False
    expected = go(network())
    flipout.Pruner.check_ranks = True
    compare(go(fsdp()), expected, bits=False)


def loaded_weights_are_no_flips() -> None:
    pruner = prune(fsdp(), "flipout-paper", noise=None)
    train(pruner, 1)
    before = {name: gathered(flips) for name, flips in pruner.statistics["flips"].items()}
    with torch.no_grad():
        for weight in pruner.weights:
            weight.parameter.mul_(-1)
    for group in pruner.optimizer.param_groups:
        group["lr"] = 1e-30
    train(pruner, 2, skip=1)
    assert all(torch.equal(gathered(flips), before[name]) for name, flips in pruner.statistics["flips"].items())


def replicas_that_differ() -> None:
    """Two replicas of the same shards with different weights: the ranks that hold the same part are compared."""
    pruner = prune(hsdp(seed=torch.distributed.get_rank() // 2), "magnitude")
    with pytest.raises(RuntimeError, match="ranks"):
        train(pruner)


def other_seeds() -> None:
    pruner = prune(fsdp(), "random", seed=torch.distributed.get_rank())
    with pytest.raises(RuntimeError, match="seed"):
        train(pruner)


def half_sharded() -> None:
    """Some weights are sharded, and others are not."""

    def half() -> nn.Module:
        model = network()
        fully_shard(model[0])
        return model

    flipout.Pruner.check_ranks = False
    train(expected := prune(network(), "flipout", floor=3))
    flipout.Pruner.check_ranks = True
    train(pruner := prune(half(), "flipout", floor=3))
    compare(pruner, expected, bits=False)


METHODS = [
    "magnitude",
    "flipout",
    "flipout-paper",
    "random",
    "magnitude-uncertainty",
    "relative-magnitude",
    "lamp",
    "fisher",
    "rigl",
    "granet",
    "lottery",
    "hoyer-square",
]
Scenarios = dict[str, Callable[[], None]]
ON_TWO: Scenarios = {
    "layouts": layouts_of_elements,
    **{f"fsdp {method}": partial(like_one_device, "fsdp", method) for method in METHODS},
    "fsdp floor": partial(like_one_device, "fsdp", "magnitude", floor=4, sparsity=0.8),
    "fsdp scope": partial(like_one_device, "fsdp", "flipout", scope="layer", sparsity=0.8),
    "fsdp adamw": partial(like_one_device, "fsdp", "flipout", optimizer="adamw"),
    "fsdp second chances": partial(like_one_device, "fsdp", "magnitude", second_chances=True, noise=0.5),
    "fsdp weight noise": partial(
        like_one_device, "fsdp", "flipout-paper", noise=flipout.GradientNoise(0.01, relative_to="weight")
    ),
    "tensor-parallel flipout": partial(like_one_device, "tensor-parallel", "flipout"),
    "tensor-parallel paper": partial(like_one_device, "tensor-parallel", "flipout-paper"),
    "tensor-parallel lamp": partial(like_one_device, "tensor-parallel", "lamp"),
    "ties fsdp": partial(equal_scores, "fsdp"),
    "ties tensor-parallel": partial(equal_scores, "tensor-parallel"),
    "refusals": refusals,
    "own statistic": own_statistic,
    "own criterion": own_criterion,
    "not finite": not_finite,
    "zeros": zeros_and_copies,
    "gathered": weights_are_gathered_when_asked,
    "states": states,
    "silence": a_step_exchanges_nothing,
    "keep zeros": zeros_are_kept,
    "accumulation": accumulation_and_clipping,
    "loaded": loaded_weights_are_no_flips,
    "other seeds": other_seeds,
    "half sharded": half_sharded,
}
ON_FOUR: Scenarios = {
    "layouts": layouts_of_elements,
    "fsdp flipout": partial(like_one_device, "fsdp", "flipout"),
    "fsdp paper": partial(like_one_device, "fsdp", "flipout-paper"),
    "hsdp flipout": partial(like_one_device, "hsdp", "flipout"),
    "hsdp paper": partial(like_one_device, "hsdp", "flipout-paper"),
    "both flipout": partial(like_one_device, "both", "flipout"),
    "both paper": partial(like_one_device, "both", "flipout-paper"),
    "both lamp": partial(like_one_device, "both", "lamp"),
    "ties hsdp": partial(equal_scores, "hsdp"),
    "ties both": partial(equal_scores, "both"),
    "replicas": replicas_that_differ,
}


def main(rank: int, ranks: int, folder: Path, only: str = "") -> None:
    warnings.simplefilter("ignore")
    store = torch.distributed.FileStore(str(folder / "store"), ranks)  # type: ignore[attr-defined]
    limit = timedelta(seconds=40)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks, store=store, timeout=limit)
    messages: dict[str, Any] = {}
    for name, scenario in (ON_TWO if ranks == 2 else ON_FOUR).items():
        if only not in name:
            continue
        print(name, flush=True)
        try:
            scenario()
            messages[name] = ""
        except (AssertionError, pytest.fail.Exception):
            messages[name] = traceback.format_exc()
        except Exception:  # the ranks are no longer at the same place
            messages[name] = traceback.format_exc()
            break
    (folder / f"{rank}.json").write_text(json.dumps(messages), encoding="utf-8")
    torch.distributed.barrier()
    os._exit(0)  # gloo's threads sometimes abort an interpreter that is shut down


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
