"""Sweeps: many runs from one grid, on the processes of this machine or on a Ray cluster."""

from .execution import Report, sweep
from .grid import Grid, Planned, read_grid, shipped_grids
from .job import Engine
from .store import open_store

__all__ = ["Engine", "Grid", "Planned", "Report", "open_store", "read_grid", "shipped_grids", "sweep"]
