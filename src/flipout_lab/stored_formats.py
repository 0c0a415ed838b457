"""The formats of the JSON files that runs and sweeps write. A file that does not have its format is an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from .errors import LabError

AtLeastOne = Annotated[int, Field(ge=1)]
Format = type[BaseModel]


class StoredFormat(BaseModel):
    """What a version writes into a file. Other keys are allowed: versions add some."""

    model_config = ConfigDict(strict=True)


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


def _format(base: Format = StoredFormat, /, **keys: Any) -> Format:
    """A format with these keys: their types, or a type and a default for a key that may be missing."""
    fields: Any = {key: kind if isinstance(kind, tuple) else (kind, ...) for key, kind in keys.items()}
    return create_model("Format", __base__=base, **fields)


Shape = Annotated[list[AtLeastOne], Field(min_length=3, max_length=3)]
CONFIG_FORMAT = _format(
    settings=dict[str, Any], versions=dict[str, Any], network=_format(shape=Shape, classes=AtLeastOne)
)
EPOCH_FORMAT = _format(
    MeasuredFormat,
    **dict.fromkeys(("epoch", "step", "computed"), int),
    **dict.fromkeys(("loss", "learning_rate", "epoch_seconds"), float),
    flips=int | None,
)
"""A line of `metrics.jsonl`"""

Shots: Any = _format(over_shoots=int, under_shoots=int)
MultiplyAdds: Any = _format(dense=int, nonzero=int)
RESULT_FORMAT = _format(
    MeasuredFormat,
    **dict.fromkeys(("method", "data", "model", "accuracy_of"), str),
    **dict.fromkeys(("seed", "epochs", "prunable", "computed"), int),
    effective=int | None,
    dead_layers=list[str],
    layers=dict[str, _format(weights=int, kept=int)],  # type: ignore[misc]
    prunings=list[_format(step=int, nonzero=int, kept=dict[str, int])],  # type: ignore[misc]
    flips=dict[str, _format(kept=list[int], pruned=list[int])] | None,  # type: ignore[misc]
    aim=Shots | None,
    shrinks=list[_format(step=int, weights=int, share=float)],  # type: ignore[misc]
    sparse_layers=(list[str], []),
    processor_seconds=(float | None, None),
    multiply_adds=MultiplyAdds,
)
GRID_FORMAT: Any = _format(title=str, parts=dict[str, list[str]])
FAILURE_FORMAT = _format(kind=str, error=str)
SAVED_RESULT_FORMAT: Any = _format(
    **dict.fromkeys(("sparsity", "test_accuracy", "validation_accuracy"), (float | None, None)),
    **dict.fromkeys(("nonzero", "prunable", "effective", "epochs"), (int | None, None)),
    multiply_adds=(MultiplyAdds | None, None),
    layers=(dict[str, dict[str, int]] | None, None),
    dead_layers=(list[str], []),
    aim=(Shots | None, None),
    **dict.fromkeys(("accuracy_before_fine_tuning", "processor_seconds", "call_time"), (float | None, None)),
    seconds=float,
)
"""What the `results.json` of a report keeps of the result of a run"""

KNOWN_FORMAT: Any = _format(result=SAVED_RESULT_FORMAT, versions=dict[str, Any])
SWEEP_FORMAT = _format(
    threads=int,
    grids=dict[str, GRID_FORMAT],
    runs=dict[str, dict[str, Any]],
    known=(dict[str, KNOWN_FORMAT], {}),
)

SAVED_RUN_FORMAT: Any = _format(
    settings=dict[str, Any], parts=list[str], result=(SAVED_RESULT_FORMAT | None, None), failure=(str, "")
)
RESULTS_FORMAT = _format(
    title=str,
    versions=dict[str, list[str]],
    settings=dict[str, Any],
    defaults=(dict[str, dict[str, Any]], {}),
    runs=list[SAVED_RUN_FORMAT],
)


def parse_stored(text: str | bytes, expected: Format, where: str, advice: str) -> dict[str, Any]:
    """Read JSON of a format. An error says where it is, what is wrong first, and the advice."""
    try:
        content: dict[str, Any] = json.loads(text)
        expected.model_validate(content)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"])) or "content"
        raise LabError(f"{where} is damaged ({key}: {problem['msg'].lower()}); {advice}") from None
    except (ValueError, RecursionError) as error:
        raise LabError(f"{where} is damaged ({error}); {advice}") from error
    return content


def read_stored(path: Path, expected: Format, advice: str) -> dict[str, Any]:
    return parse_stored(path.read_bytes(), expected, str(path), advice)
