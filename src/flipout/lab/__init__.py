"""The lab: data, networks and training runs that compare pruning methods under the same budget."""

from .data import Data, load
from .errors import LabError
from .models import build
from .runs.recipe_reader import make_settings
from .runs.settings import Settings
from .runs.trackers import Tracker
from .runs.training import load_run, train

__all__ = ["Data", "LabError", "Settings", "Tracker", "build", "load", "load_run", "make_settings", "train"]
