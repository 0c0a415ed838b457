"""Networks: the catalogue (`MODELS`) and `build(name, shape, classes, width)`."""

from .model_building import build
from .model_catalogue import MODELS, ModelInfo

__all__ = ["MODELS", "ModelInfo", "build"]
