"""A wrong address of a Ray cluster is found at once; Ray itself tries for minutes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from flipout_lab.errors import LabError

pytest.importorskip("ray")
from flipout_lab.sweeps.ray_engine import RayEngine


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nonsense", "http://x:1", "localhost:99999999"]
)
def test_a_wrong_address(address: str) -> None:
    engine, listener = RayEngine(address), None
    started = time.monotonic()
    unused: Any = listener
    with pytest.raises(LabError, match=r"Ray cluster|HOST:PORT"):
        engine.run([], unused)
    assert time.monotonic() - started < 10
