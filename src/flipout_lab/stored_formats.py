"""The formats of the JSON files that runs and sweeps write. A file that does not have its format is an error."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from .errors import LabError
from .files import read_json


class StoredFormat(BaseModel):
    """What every version writes into a file. Other keys are allowed: versions add some."""

    model_config = ConfigDict(strict=True)


class NetworkFormat(StoredFormat):
    shape: list[int]
    classes: int

    @model_validator(mode="after")
    def _check(self) -> NetworkFormat:
        if len(self.shape) != 3 or min(*self.shape, self.classes) < 1:
            raise ValueError("the shape must be three numbers of at least 1")
        return self


class ConfigFormat(StoredFormat):
    """`config.json`"""

    settings: dict[str, Any]
    versions: dict[str, Any]
    network: NetworkFormat | None = None


class MeasuredFormat(StoredFormat):
    """Numbers of a run or an epoch: one of the accuracies is there."""

    test_accuracy: float | None
    validation_accuracy: float | None
    sparsity: float
    nonzero: int
    seconds: float

    @model_validator(mode="after")
    def _check(self) -> MeasuredFormat:
        if self.test_accuracy is None and self.validation_accuracy is None:
            raise ValueError("both accuracies are null")
        return self


class EpochFormat(MeasuredFormat):
    """A line of `metrics.jsonl`"""

    epoch: int
    step: int
    loss: float
    learning_rate: float
    flips: int | None = None
    computed: int | None = None
    epoch_seconds: float | None = None


class LayerFormat(StoredFormat):
    weights: int
    kept: int


class PruningFormat(StoredFormat):
    step: int
    nonzero: int
    kept: dict[str, int]


class ShotsFormat(StoredFormat):
    over_shoots: int
    under_shoots: int


class FlipsFormat(StoredFormat):
    kept: list[int]
    pruned: list[int]


class ShrinkFormat(StoredFormat):
    step: int
    weights: int
    share: float


class MultiplyAddsFormat(StoredFormat):
    dense: int
    nonzero: int


class ResultFormat(MeasuredFormat):
    """`result.json`"""

    method: str
    data: str
    model: str
    seed: int
    epochs: int
    prunable: int
    effective: int | None
    accuracy_of: str
    dead_layers: list[str]
    layers: dict[str, LayerFormat]
    prunings: list[PruningFormat]
    flips: dict[str, FlipsFormat] | None = None
    aim: ShotsFormat | None = None
    shrinks: list[ShrinkFormat] = []
    computed: int | None = None
    multiply_adds: MultiplyAddsFormat | None = None


class GridFormat(StoredFormat):
    title: str
    parts: dict[str, list[str]]


class SweepFormat(StoredFormat):
    """`sweep.json`"""

    threads: int
    grids: dict[str, GridFormat]
    runs: dict[str, dict[str, Any]]


class FailureFormat(StoredFormat):
    """`failure.json`"""

    kind: str
    error: str


class SavedResultFormat(StoredFormat):
    """The result of a run in the `results.json` of a report"""

    sparsity: float | None = None
    nonzero: int | None = None
    prunable: int | None = None
    effective: int | None = None
    multiply_adds: MultiplyAddsFormat | None = None
    epochs: int | None = None
    test_accuracy: float | None = None
    validation_accuracy: float | None = None
    dead_layers: list[str] = []
    aim: ShotsFormat | None = None
    accuracy_before_fine_tuning: float | None = None
    seconds: float


def check_format(content: Mapping[str, Any], expected: type[StoredFormat], where: str, advice: str) -> None:
    """Raise an error if content does not have a format. The error says where, what is wrong first, and the advice."""
    try:
        expected.model_validate(content)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"])) or "content"
        raise LabError(f"{where} is damaged ({key}: {problem['msg'].lower()}); {advice}") from None


def read_stored(path: Path, expected: type[StoredFormat], advice: str) -> dict[str, Any]:
    """Read a JSON file of a run or a sweep."""
    try:
        content = read_json(path)
    except LabError as error:
        raise LabError(f"{error}; {advice}") from error
    check_format(content, expected, str(path), advice)
    return content
