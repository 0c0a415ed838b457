"""Networks: the catalogue (`MODELS`) and `build(name, shape, classes, width)`."""

from .model_catalogue import MODELS, ModelInfo, build

__all__ = ["MODELS", "ModelInfo", "build"]
