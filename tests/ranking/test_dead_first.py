"""Choosing weights on no live path first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from flipout.problems import NotFiniteError
from flipout.ranking import apportion, choose, choose_dead_first, dead_first

Position = tuple[int, int]


def obvious(
    scores: Sequence[Tensor],
    alive: Sequence[Tensor],
    dead: Mapping[int, Tensor],
    keep: int,
    floors: Sequence[int],
    per_layer: bool,
) -> set[Position]:
    """Sort all weights, dead ones first, and prune each one that its layer can spare until enough are pruned."""
    kept = [int(mask.sum()) for mask in alive]
    least = apportion([mask.numel() for mask in alive], keep, floors) if per_layer else list(floors)
    ranked = sorted(
        (not (i in dead and bool(dead[i][j])), float(scores[i][j]), i, j)
        for i, mask in enumerate(alive)
        for j in range(len(mask))
        if mask[j]
    )
    pruned: set[Position] = set()
    for _, _, i, j in ranked:
        if sum(kept) > keep and kept[i] > least[i]:
            pruned.add((i, j))
            kept[i] -= 1
    return pruned


def once(dead: Mapping[int, Tensor]) -> dead_first.FindDead:
    """Dead weights that do not depend on what is chosen: those given, as far as they are kept."""

    def find(masks: Sequence[Tensor]) -> dict[int, Tensor]:
        found = {i: masks[i] & mark for i, mark in dead.items()}
        return {i: mark for i, mark in found.items() if mark.any()}

    return find


@settings(deadline=None, max_examples=150)
@given(st.data(), st.booleans(), st.sampled_from([torch.float32, torch.float64, torch.int64]))
def test_against_sorting(data: st.DataObject, per_layer: bool, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1 << 30)))
    sizes = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    scores = [torch.randint(-3, 4, (n,), generator=generator).to(dtype) for n in sizes]
    alive = [torch.ones(n, dtype=torch.bool) if per_layer else torch.rand(n, generator=generator) < 0.8 for n in sizes]
    dead = {i: mask & (torch.rand(len(mask), generator=generator) < 0.5) for i, mask in enumerate(alive)}
    dead = {i: mark for i, mark in dead.items() if mark.any()}
    floors = [data.draw(st.integers(0, int(mask.sum()))) for mask in alive]
    keep = data.draw(st.integers(sum(floors), sum(int(mask.sum()) for mask in alive)))
    if sum(int(mark.sum()) for mark in dead.values()) == sum(int(mask.sum()) for mask in alive):
        dead = {}
    marks = choose_dead_first(
        once(dead), lambda i: scores[i], alive, keep, floors=floors, per_layer=per_layer, dtype=dtype
    )
    found = {(i, int(j)) for i, mark in enumerate(marks) for j in mark.nonzero()}
    assert found == obvious(scores, alive, dead, keep, floors, per_layer)


def layered(masks: Sequence[Tensor]) -> dict[int, Tensor]:
    """The dead weights of a perceptron, whose masks are matrices: follow the weights from both ends, one by one."""
    reached, reaching = [set(range(masks[0].shape[1]))], [set(range(masks[-1].shape[0]))]
    for mask in masks:
        reached.append({int(o) for o, i in mask.nonzero() if int(i) in reached[-1]})
    for mask in reversed(masks):
        reaching.insert(0, {int(i) for o, i in mask.nonzero() if int(o) in reaching[0]})
    dead = {}
    for n, mask in enumerate(masks):
        dead[n] = torch.zeros_like(mask)
        for o, i in mask.nonzero():
            dead[n][o, i] = int(i) not in reached[n] or int(o) not in reaching[n + 1]
    return {n: mark for n, mark in dead.items() if mark.any()}


def greedy(scores: Sequence[Tensor], alive: Sequence[Tensor], keep: int) -> list[Tensor]:
    """Go through the weights from the lowest score up, and prune each with its orphans if that is not too much."""
    masks = [mask.clone() for mask in alive]

    def due() -> int:
        return sum(int(mask.sum()) for mask in masks) - keep

    ranked = sorted(
        (float(scores[n][o, i]), n, int(o), int(i)) for n, mask in enumerate(alive) for o, i in mask.nonzero()
    )
    first = layered(masks)
    if sum(int(mark.sum()) for mark in first.values()) < sum(int(mask.sum()) for mask in masks):
        for _, n, o, i in ranked:
            if due() and n in first and first[n][o, i]:
                masks[n][o, i] = False
        for _, n, o, i in ranked:
            if masks[n][o, i]:
                after = [mask.clone() for mask in masks]
                after[n][o, i] = False
                after = [mask & ~layered(after).get(m, torch.tensor(False)) for m, mask in enumerate(after)]
                if sum(int(mask.sum()) for mask in after) >= keep:
                    masks = after
    for _, n, o, i in ranked:
        if due() and masks[n][o, i]:
            masks[n][o, i] = False
    return masks


def random_perceptron(data: st.DataObject) -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1 << 30)))
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=2, max_size=5))
    shapes = [(after, before) for before, after in pairwise(sizes)]
    density = data.draw(st.sampled_from([0.3, 0.6, 0.9, 1.0]))
    scores = [torch.randint(0, 30, shape, generator=generator).float() for shape in shapes]
    return scores, [torch.rand(shape, generator=generator) < density for shape in shapes]


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_against_one_weight_after_the_other(data: st.DataObject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_first, "ATTEMPTS", 1000)
    monkeypatch.setattr(dead_first, "TOLERANCE", 0.0)
    scores, alive = random_perceptron(data)
    keep = data.draw(st.integers(0, sum(int(mask.sum()) for mask in alive)))
    assert_greedy(scores, alive, keep)


def test_many_networks_one_weight_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the weights that are not kept back are fewer than those that are due."""
    monkeypatch.setattr(dead_first, "ATTEMPTS", 1000)
    monkeypatch.setattr(dead_first, "TOLERANCE", 0.0)
    generator = torch.Generator().manual_seed(1031)
    for _ in range(150):
        shapes = [(2, 1), (3, 2), (2, 3), (2, 2)]
        scores = [torch.randint(0, 30, shape, generator=generator).float() for shape in shapes]
        alive = [torch.rand(shape, generator=generator) < 0.9 for shape in shapes]
        assert_greedy(scores, alive, keep=2)


def assert_greedy(scores: Sequence[Tensor], alive: Sequence[Tensor], keep: int) -> None:
    chosen = choose_dead_first(layered, lambda n: scores[n], alive, keep, floors=[0] * len(alive))
    left = [mask ^ mark for mask, mark in zip(alive, chosen, strict=True)]
    assert [mask.tolist() for mask in left] == [mask.tolist() for mask in greedy(scores, alive, keep)]


@settings(deadline=None, max_examples=150)
@given(st.data(), st.booleans())
def test_the_count_is_exact_and_floors_hold(data: st.DataObject, per_layer: bool) -> None:
    scores, alive = random_perceptron(data)
    if per_layer:
        alive = [torch.ones_like(mask) for mask in alive]
    floors = [data.draw(st.integers(0, int(mask.sum()))) for mask in alive]
    keep = data.draw(st.integers(sum(floors), sum(int(mask.sum()) for mask in alive)))
    chosen = choose_dead_first(layered, lambda n: scores[n], alive, keep, floors=floors, per_layer=per_layer)
    left = [int((mask ^ mark).sum()) for mask, mark in zip(alive, chosen, strict=True)]
    assert all(not (mark & ~mask).any() for mask, mark in zip(alive, chosen, strict=True))
    assert sum(left) == keep
    assert all(number >= floor for number, floor in zip(left, floors, strict=True))
    if per_layer:
        assert left == apportion([mask.numel() for mask in alive], keep, floors)


def test_weights_that_lose_their_path_make_room_for_others() -> None:
    """Three chains of two weights: (1, 9), (3, 4) and (5, 6). If one weight of a chain goes, the other is dead."""
    eye = torch.eye(3, dtype=torch.bool)
    scores = [torch.diag(torch.tensor([1.0, 3.0, 5.0])), torch.diag(torch.tensor([9.0, 4.0, 6.0]))]
    plain = choose(lambda i: scores[i], [eye, eye], 4, floors=[0, 0])
    assert [mark.diagonal().tolist() for mark in plain] == [[True, True, False], [False, False, False]]
    for keep, chains in ((4, [True, False, False]), (2, [True, True, False])):
        chosen = choose_dead_first(layered, lambda i: scores[i], [eye, eye], keep, floors=[0, 0])
        assert [mark.diagonal().tolist() for mark in chosen] == [chains, chains]


def test_the_last_path_is_kept() -> None:
    """The only weight of a layer has the lowest score. Pruned, it would take the whole network with it."""
    scores = [torch.tensor([[5.0, 6.0, 7.0, 8.0]]), torch.tensor([[1.0]])]
    alive = [torch.ones_like(score, dtype=torch.bool) for score in scores]
    chosen = choose_dead_first(layered, lambda i: scores[i], alive, 2, floors=[0, 0])
    assert [mark.flatten().tolist() for mark in chosen] == [[True, True, True, False], [False]]


def test_where_all_weights_are_dead_the_scores_decide() -> None:
    alive = [torch.ones(4, dtype=torch.bool)]
    scores = torch.tensor([3.0, 1.0, 2.0, 4.0])
    chosen = choose_dead_first(lambda masks: {0: masks[0]}, lambda _: scores, alive, 2, floors=[0])
    assert chosen[0].tolist() == [False, True, True, False]


def test_scores_that_are_not_finite() -> None:
    alive, dead = [torch.ones(4, dtype=torch.bool)], {0: torch.tensor([True, True, False, False])}
    scores = torch.tensor([3.0, 1.0, float("nan"), 4.0])
    for keep in (3, 2, 1):
        with pytest.raises(NotFiniteError):
            choose_dead_first(once(dead), lambda _: scores, alive, keep, floors=[0])
