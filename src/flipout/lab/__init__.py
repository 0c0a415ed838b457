"""The laboratory: data, networks and runs that put every method beside every other under one budget."""

from .data import Data, load
from .errors import LabError
from .models import build
from .runs.settings import Settings, make_settings
from .runs.trackers import Tracker
from .runs.training import load_run, train

__all__ = ["Data", "LabError", "Settings", "Tracker", "build", "load", "load_run", "make_settings", "train"]
