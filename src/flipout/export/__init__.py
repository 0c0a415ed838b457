"""Export of pruned networks: compaction, sparse files, ONNX and torch.export files, acceleration, and a model card."""

from ..graph.live_paths import EffectiveWeights
from .card_measurement import card
from .compaction import compact
from .effective_sparsity import effective_weights
from .formats.onnx_file import to_onnx
from .formats.pt2_file import to_pt2
from .formats.semi_structured import SemiStructuredReport, check_semi_structured, to_semi_structured
from .model_card import ModelCard
from .sparse_file.file_index import SparseFileError
from .sparse_file.reading import load
from .sparse_file.writing import save
from .speed.acceleration import AcceleratedModel, accelerate
from .speed.acceleration_choices import AccelerationChoice

__all__ = [
    "AcceleratedModel",
    "AccelerationChoice",
    "EffectiveWeights",
    "ModelCard",
    "SemiStructuredReport",
    "SparseFileError",
    "accelerate",
    "card",
    "check_semi_structured",
    "compact",
    "effective_weights",
    "load",
    "save",
    "to_onnx",
    "to_pt2",
    "to_semi_structured",
]
