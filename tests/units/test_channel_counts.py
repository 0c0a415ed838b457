"""Removing channels until few enough weights are left, against counting everything again each time."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flipout.units.channel_counts import ChannelCounts, remove_evenly, remove_lowest
from flipout.units.channel_outlook import fewest, remove_with_outlook

Layers = tuple[list[Tensor], list[Tensor | None], list[int]]


@st.composite
def networks(draw: st.DrawFn) -> tuple[int, Layers, list[int]]:
    units = draw(st.integers(1, 6))
    channels = st.lists(st.integers(0, units), min_size=1, max_size=6).map(torch.tensor)
    number = draw(st.integers(1, 3))
    outputs = [draw(channels) for _ in range(number)]
    inputs = [draw(st.none() | channels) for _ in range(number)]
    positions = [draw(st.sampled_from([1, 4, 9])) for _ in range(number)]
    return units, (outputs, inputs, positions), [draw(st.integers(0, 2)) for _ in range(units)]


def count(layers: Layers, alive: list[bool]) -> list[int]:
    kept = torch.tensor([*alive, True])
    return [
        int(kept[out].sum()) * (1 if inp is None else int(kept[inp].sum())) * size
        for out, inp, size in zip(*layers, strict=True)
    ]


def slow_removal(
    layers: Layers, alive: list[bool], scores: list[float], families: list[int], keep: int, floors: list[int]
) -> list[bool]:
    alive, removed = list(alive), []
    for unit in sorted(range(len(alive)), key=lambda u: (scores[u], u)):
        without = [kept and other != unit for other, kept in enumerate(alive)]
        last = sum(kept for other, kept in enumerate(alive) if families[other] == families[unit]) == 1
        touched = [
            n for n, (a, b) in enumerate(zip(count(layers, alive), count(layers, without), strict=True)) if a != b
        ]
        low = any(count(layers, without)[n] < floors[n] for n in touched)
        if sum(count(layers, alive)) > keep and alive[unit] and not last and not low:
            alive = without
            removed.append(unit)
    for unit in reversed(removed):
        more = [kept or other == unit for other, kept in enumerate(alive)]
        if sum(count(layers, more)) <= keep:
            alive = more
    return alive


@settings(deadline=None)
@given(networks(), st.data())
def test_the_lowest_channels_go(case: tuple[int, Layers, list[int]], data: st.DataObject) -> None:
    units, layers, families = case
    scores = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=units, max_size=units))
    alive = data.draw(st.lists(st.booleans(), min_size=units, max_size=units))
    total = sum(count(layers, alive))
    keep = data.draw(st.integers(0, total))
    floors = [data.draw(st.integers(0, max(0, n))) for n in count(layers, alive)]
    counts = ChannelCounts(units, *layers, torch.tensor(alive, dtype=torch.bool))
    assert counts.kept == total
    remove_lowest(counts, torch.tensor(scores), families, keep, floors)
    assert counts.kept == sum(count(layers, counts.alive))
    assert counts.alive == slow_removal(layers, alive, scores, families, keep, floors)


@settings(deadline=None)
@given(networks(), st.data())
def test_every_family_loses_the_same_share(case: tuple[int, Layers, list[int]], data: st.DataObject) -> None:
    units, layers, families = case
    every = torch.ones(units, dtype=torch.bool)
    total = sum(count(layers, [True] * units))
    keep = data.draw(st.integers(0, total))
    kept = []
    for seed in range(2):  # other scores, the same numbers
        counts = ChannelCounts(units, *layers, every)
        scores = torch.rand(units, generator=torch.Generator().manual_seed(seed))
        remove_evenly(counts, scores, families, keep, [0] * len(layers[0]))
        kept.append({f: sum(a for a, g in zip(counts.alive, families, strict=True) if g == f) for f in set(families)})
        for family in set(families):
            own = [u for u in range(units) if families[u] == family]
            gone = [u for u in own if not counts.alive[u]]
            assert len(gone) < len(own)
            stay = [u for u in own if counts.alive[u]]
            assert max((scores[u] for u in gone), default=-1) <= min(scores[u] for u in stay)
    sizes = {f: families.count(f) for f in set(families)}
    for one in sizes:
        for other in sizes:
            lost = [(sizes[f] - kept[0][f]) / sizes[f] for f in (one, other)]
            limit = min((sizes[f] - 1) / sizes[f] for f in (one, other))
            assert abs(min(lost[0], limit) - min(lost[1], limit)) <= 1 / min(sizes[one], sizes[other])


def chain(widths: list[int], *, residual: bool) -> tuple[int, Layers, list[int]]:
    """Layers in a row; with a residual sum, the outputs of the last one are those of the first."""
    starts = [sum(widths[:place]) for place in range(len(widths))]
    sides = [torch.arange(start, start + width) for start, width in zip(starts, widths, strict=True)]
    units, fixed = sum(widths), torch.full((3,), sum(widths))
    outputs = [*sides, *([sides[0]] if residual else []), fixed]
    inputs: list[Tensor | None] = [fixed, *sides, *([sides[0]] if residual else [])]
    families = [place for place, width in enumerate(widths) for _ in range(width)]
    return units, (outputs, inputs, [9, *[1] * (len(outputs) - 1)]), families


@settings(deadline=None)
@given(st.lists(st.integers(2, 8), min_size=2, max_size=4), st.booleans(), st.booleans(), st.data())
def test_floors_never_end_above_a_plan_that_can_be_reached(
    widths: list[int], residual: bool, evenly: bool, data: st.DataObject
) -> None:
    units, layers, families = chain(widths, residual=residual)
    sizes = count(layers, [True] * units)
    share = data.draw(st.sampled_from([0, 0.1, 0.25, 0.5]))
    floors, total = [int(share * size) for size in sizes], sum(sizes)
    alive = torch.ones(units, dtype=torch.bool)
    every = ChannelCounts(units, *layers, alive)
    least = fewest(every, torch.zeros(units), families, 0, floors).kept + data.draw(st.integers(0, 5))
    for keep in (total - (total - least) // 3, total - 2 * (total - least) // 3, least):
        scores = torch.tensor(data.draw(st.permutations(range(units)))).double()
        before = ChannelCounts(units, *layers, alive)
        remove = remove_evenly if evenly else remove_lowest
        left = remove_with_outlook(remove, before.copy(), before, scores, families, keep, least, floors)
        assert left.kept <= keep
        assert all(n >= floor for n, floor in zip(count(layers, left.alive), floors, strict=True))
        assert all(kept or not after for kept, after in zip(before.alive, left.alive, strict=True))
        alive = torch.tensor(left.alive)
