"""Copies of networks: errors that are expected are not printed."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn

from flipout.channels.copies import independent_copy, without_printed_errors
from flipout.export import accelerate, compact


class FixedBatch(nn.Module):
    """Accepts only batches of two."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.table = nn.Linear(4, 8), nn.Linear(8, 3), nn.Parameter(torch.randn(2, 8))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last((self.first(x) + self.table).relu())
        return out


X = torch.randn(2, 4)
FORMS: dict[str, Callable[[], nn.Module]] = {
    "plain": FixedBatch,
    "traced": lambda: fx.symbolic_trace(FixedBatch()),
    "traced inside": lambda: nn.Sequential(fx.symbolic_trace(FixedBatch()), nn.Linear(3, 3)),
    "compacted": lambda: compact(FixedBatch(), X),
}


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_printed_if_all_is_well(form: str, capfd: pytest.CaptureFixture[str]) -> None:
    model = FORMS[form]().eval()
    for made in (compact(model, X), accelerate(model, X, repetitions=1)):
        torch.testing.assert_close(made(X), model(X))
    assert capfd.readouterr() == ("", "")


def test_the_network_itself_is_not_changed(capfd: pytest.CaptureFixture[str]) -> None:
    """torch.fx still prints the errors of the user's own graphs."""
    model = fx.symbolic_trace(FixedBatch())
    quiet = independent_copy(model)
    for each, printed in ((quiet, False), (model, True), (without_printed_errors(copy.deepcopy(model)), False)):
        with pytest.raises(RuntimeError, match="must match the size"):
            each(torch.randn(3, 4))
        assert ("Call using an FX-traced Module" in capfd.readouterr().err) == printed
    assert torch.equal(quiet(X), model(X))


def test_hooks_still_run() -> None:
    quiet, seen = independent_copy(fx.symbolic_trace(FixedBatch())), list[int]()
    quiet.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    quiet(X)
    assert seen == [2]
