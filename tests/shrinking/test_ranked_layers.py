"""Layers and parked weights in one ranking."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from flipout.layers import Layer
from flipout.positions import ListedPositions, Positions
from flipout.shrinking.ranked_layers import RankedLayers


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.data())
def test_parked_weights_are_ranked_where_they_were(rows: int, columns: int, data: st.DataObject) -> None:
    kept = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, unique=True).map(sorted))
    where = Positions(torch.Size([rows, columns]), (torch.tensor(kept), None))
    outside = [n for n in range(rows * columns) if n // columns not in kept]
    aside = data.draw(st.lists(st.sampled_from(outside), min_size=1, unique=True).map(sorted)) if outside else []
    weight, model = nn.Parameter(torch.zeros(len(kept), columns)), nn.Module()
    layer, whole = Layer("weight", model, weight), Layer("other", model, nn.Parameter(torch.zeros(2, 2)))
    layer.positions = where
    parked = Layer("weight", model, nn.Parameter(torch.zeros(len(aside))))
    parked.positions = ListedPositions.of(where.shape, torch.tensor(aside, dtype=torch.int64))
    ranked = RankedLayers([whole, layer], [parked] if aside else [])
    joined = ranked.join(1, lambda each: each.positions.elements())
    assert joined.flatten().tolist() == sorted([*where.elements().flatten().tolist(), *aside])
    parts = ranked.split([torch.zeros(2, 2), joined])
    assert parts[0].shape == (2, 2)
    assert torch.equal(parts[1], where.elements())
    assert [part.tolist() for part in parts[2:]] == ([aside] if aside else [])
    assert ranked.sizes == [4, rows * columns]
    dead = ranked.find_dead(lambda layers, masks: {}, ranked.masks)
    assert [int(mark.sum()) for mark in dead.values()] == ([len(aside)] if aside else [])
