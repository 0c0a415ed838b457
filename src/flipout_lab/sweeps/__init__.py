"""Sweeps: many runs from one grid file, in processes on this machine or on a Ray cluster."""

from .execution import SweepOutcome, sweep
from .grid import Grid, PlannedRun, read_grid, shipped_grids
from .local_engine import Engine
from .store import Store

__all__ = ["Engine", "Grid", "PlannedRun", "Store", "SweepOutcome", "read_grid", "shipped_grids", "sweep"]
