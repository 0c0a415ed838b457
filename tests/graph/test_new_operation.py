"""The example of CONTRIBUTING.md: an operation is added with a rule and an entry in the table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flipout.export import compact, effective_weights
from flipout.graph import operations
from flipout.graph.rules import channelwise
from tests.graph.networks import randomize

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"


@pytest.fixture
def recognize_prelu() -> Any:
    """The code of the page, run where the page says it belongs."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (code,) = (block for block in blocks if "class PReLURule" in block)
    names = {**vars(channelwise), "nn": nn}
    exec(compile("from __future__ import annotations\n" + code, str(PAGE), "exec"), names)
    return names["recognize_prelu"]


@torch.no_grad()
def network() -> nn.Module:
    layers = nn.Conv2d(2, 6, 3), nn.PReLU(6), nn.Conv2d(6, 3, 3)
    model = randomize(nn.Sequential(*layers), 0).eval().double()
    layers[0].weight[:2] = 0  # constant channels, one of them negative
    layers[0].bias[:2] = torch.tensor([-1.0, 1.0])  # type: ignore[index]
    layers[1].weight.uniform_(0.1, 0.9)
    layers[2].weight[:, 5] = 0  # a channel that is not read
    return model


def test_the_example_of_the_page(recognize_prelu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x = network(), torch.randn(3, 2, 8, 8).double()
    before = compact(model, x)
    # What is not read goes without the rule; the constants do not.
    assert [layer.outputs for layer in before.compaction.layers] == [(6, 5), (3, 3)]  # type: ignore[union-attr]
    monkeypatch.setitem(operations.MODULES, nn.PReLU, recognize_prelu)
    after = compact(model, x)
    assert after.notes == []
    assert [layer.outputs for layer in after.compaction.layers] == [(6, 3), (3, 3)]  # type: ignore[union-attr]
    torch.testing.assert_close(after(x), model(x), rtol=1e-9, atol=1e-9)
    assert effective_weights(model, x).layers == {"0.weight": (72, 54), "2.weight": (135, 81)}


def test_a_call_that_the_rule_does_not_fit_stays_opaque(recognize_prelu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(operations.MODULES, nn.PReLU, recognize_prelu)
    model = randomize(nn.Sequential(nn.Conv2d(2, 6, 3), nn.PReLU(), nn.Conv2d(6, 3, 3)), 0).eval()
    with torch.no_grad():
        model[0].weight[:2] = 0  # type: ignore[index]
    small = compact(model, torch.randn(1, 2, 8, 8))
    assert [layer.outputs for layer in small.compaction.layers] == [(6, 6), (3, 3)]  # type: ignore[union-attr]
