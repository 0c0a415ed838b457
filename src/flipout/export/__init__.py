"""Export of pruned networks: compaction, sparse files, ONNX and torch.export files, acceleration, and a model card."""

from ..channels.live_paths import EffectiveWeights
from .acceleration import AcceleratedModel, accelerate
from .compacted_file import CompactedFileError, load_compacted, save_compacted
from .compaction import compact
from .costs import effective_weights
from .formats import to_onnx, to_pt2
from .layer_trials import AccelerationChoice
from .model_card import ModelCard, card
from .pretrained import fit_config
from .semi_structured import SemiStructuredReport, check_semi_structured, to_semi_structured
from .sparse_file import load, save
from .sparse_index import SparseFileError

__all__ = [
    "AcceleratedModel",
    "AccelerationChoice",
    "CompactedFileError",
    "EffectiveWeights",
    "ModelCard",
    "SemiStructuredReport",
    "SparseFileError",
    "accelerate",
    "card",
    "check_semi_structured",
    "compact",
    "effective_weights",
    "fit_config",
    "load",
    "load_compacted",
    "save",
    "save_compacted",
    "to_onnx",
    "to_pt2",
    "to_semi_structured",
]
