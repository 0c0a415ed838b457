"""Data sets: the catalogue (`DATA`) and `load(name)`, which returns a data set as tensors."""

from .data_catalogue import DATA, Data, DataInfo
from .data_loading import download, find_image_folder, load
from .downloads import data_home

__all__ = ["DATA", "Data", "DataInfo", "data_home", "download", "find_image_folder", "load"]
