"""Data for the tests of the lab: real files where $FLIPOUT_DATA has them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.small_sweep import records, swept

__all__ = ["records", "swept"]  # fixtures that several folders share

REAL = Path(os.environ.get("FLIPOUT_DATA") or "/nonexistent")


@pytest.fixture(autouse=True)
def _own_data_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes a user's cache."""
    monkeypatch.setenv("FLIPOUT_DATA", str(tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="session")
def real_mnist() -> Path:
    """A data home with the real MNIST."""
    if not (REAL / "mnist").is_dir():
        pytest.skip("$FLIPOUT_DATA has no mnist")
    return REAL


@pytest.fixture(scope="session")
def real_cifar10(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data home with the real CIFAR-10, prepared by a script if necessary."""
    if (REAL / "cifar10" / "cifar-10-batches-py").is_dir():
        return REAL
    script = REAL / "cifar10" / "prepare.py"
    if not script.exists():
        pytest.skip("$FLIPOUT_DATA has no cifar10")
    home = tmp_path_factory.mktemp("real")
    done = subprocess.run([sys.executable, str(script), str(home / "cifar10")], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"CIFAR-10 could not be prepared: {done.stderr.decode()[-200:]}")
    return home


@pytest.fixture(scope="session")
def real_photographs() -> Path:
    """A folder of real photographs in ten classes."""
    if not (REAL / "imagenette-tiny").is_dir():
        pytest.skip("$FLIPOUT_DATA has no imagenette-tiny")
    return REAL / "imagenette-tiny"
