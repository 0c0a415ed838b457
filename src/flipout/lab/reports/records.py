"""What is known of the runs in a folder: their settings, results, epochs, and which parts of a grid they belong to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import LabError
from ..files import read_json
from ..runs.run_folder import CONFIG, METRICS, RESULT
from ..runs.settings import Settings, validated
from ..sweeps.execution import FAILURE, SWEEP

# Settings that do not change what a network is asked to do.
INDIFFERENT = {"compile", "threads", "device", "aim"}
KEPT_OF_RESULTS = (
    "sparsity",
    "nonzero",
    "prunable",
    "effective",
    "epochs",
    "test_accuracy",
    "validation_accuracy",
    "dead_layers",
    "aim",
    "accuracy_before_fine_tuning",
    "seconds",
)


@dataclass(frozen=True)
class Record:
    """A run; without a result it is not finished, or failed for the reason given."""

    name: str
    settings: Settings
    parts: tuple[str, ...]
    result: Mapping[str, Any] | None = None
    failure: str = ""
    metrics: Sequence[Mapping[str, Any]] = ()
    versions: Mapping[str, Any] = field(default_factory=dict)

    @property
    def accuracy(self) -> float | None:
        """The last epoch's, never the best."""
        if self.result is None:
            return None
        test = self.result["test_accuracy"]
        return float(test if test is not None else self.result["validation_accuracy"])

    @property
    def before_fine_tuning(self) -> float | None:
        """The accuracy before the epochs that a method trains after its pruning, if it does (Hoyer-Square)."""
        if self.result is None or self.settings.total_epochs == self.settings.epochs:
            return None
        if (kept := self.result.get("accuracy_before_fine_tuning")) is not None:
            return float(kept)
        if len(self.metrics) <= self.settings.epochs:
            return None
        line = self.metrics[self.settings.epochs - 1]
        return float(line["test_accuracy"] if line["test_accuracy"] is not None else line["validation_accuracy"])

    @property
    def sparsity(self) -> float | None:
        """What was asked for, or what came out where nothing was asked for."""
        if self.settings.sparsity is None:
            return None if self.result is None else float(self.result["sparsity"])
        return self.settings.sparsity


@dataclass(frozen=True)
class Records:
    """Runs that are reported together."""

    title: str
    runs: tuple[Record, ...]

    @property
    def parts(self) -> list[str]:
        """The parts that there are, in order."""
        return list(dict.fromkeys(part for run in self.runs for part in run.parts))

    def of(self, part: str) -> list[Record]:
        return [run for run in self.runs if part in run.parts]


def collect(folder: Path) -> Records:
    """Reads the folder of a sweep with all its runs, those too that were never started, or any folder with runs in it.

    A file is read as the results that an earlier report kept.
    """
    if folder.is_file():
        return read_records(folder)
    try:
        return _collect(folder)
    except (KeyError, TypeError, ValueError) as error:
        raise LabError(
            f"{folder} holds something that is no run of this lab, or a damaged one ({type(error).__name__}: {error}); "
            "move it out of the way, or sweep again"
        ) from error


def _collect(folder: Path) -> Records:
    sweep = read_json(folder / SWEEP) if (folder / SWEEP).exists() else {"grids": {}, "runs": {}}
    parts: dict[str, list[str]] = {name: [] for name in sweep["runs"]}
    for grid in sweep["grids"].values():
        for part, names in grid["parts"].items():
            for name in names:
                parts[name].append(part)
    for path in sorted(folder.glob(f"*/{CONFIG}")):
        parts.setdefault(path.parent.name, ["runs"])
    if not parts:
        raise LabError(f"{folder} has no runs in it; give the folder of a sweep, for example runs/quick")
    runs = [_read_run(folder / name, tuple(of), sweep["runs"].get(name, {})) for name, of in parts.items()]
    title = ", ".join(grid["title"] for grid in sweep["grids"].values()) or folder.name
    return Records(title, _merged(runs))


def _merged(runs: Iterable[Record]) -> tuple[Record, ...]:
    """One record for runs with the same settings, in the parts of all of them: the first that has a result."""
    found: dict[str, Record] = {}
    for run in runs:
        key = run.settings.folder_name()
        before = found.get(key, run)
        chosen = run if before.result is None and run.result is not None else before
        found[key] = replace(chosen, parts=tuple(dict.fromkeys((*before.parts, *run.parts))))
    return tuple(found.values())


def _read_run(folder: Path, parts: tuple[str, ...], planned: Mapping[str, Any]) -> Record:
    started = (folder / CONFIG).exists()
    config = read_json(folder / CONFIG) if started else {"settings": planned, "versions": {}}
    result = read_json(folder / RESULT) if (folder / RESULT).exists() else None
    failure = read_json(folder / FAILURE)["error"] if result is None and (folder / FAILURE).exists() else ""
    lines = (folder / METRICS).read_text(encoding="utf-8").splitlines() if (folder / METRICS).exists() else []
    metrics = tuple(json.loads(line) for line in lines)
    settings = validated(config["settings"], stored=True)
    return Record(folder.name, settings, parts, result, str(failure), metrics, config["versions"])


def brief(records: Records) -> dict[str, Any]:
    """The results as plain data, small enough to keep: what all runs share is said once."""
    described = [run.settings.as_dict() for run in records.runs]
    shared = {
        key: value
        for key, value in described[0].items()
        if all(key in one and one[key] == value for one in described) and (value is not None or key == "sparsity")
    }
    versions = [dict(run.versions) for run in records.runs if run.versions] or [{}]
    runs = []
    always = {"method", "sparsity", "seed"}
    for run, settings in zip(records.runs, described, strict=True):
        named = run.settings.non_defaults().keys() | always
        one: dict[str, Any] = {
            "settings": {key: value for key, value in settings.items() if key in named and key not in shared},
            "parts": list(run.parts),
        }
        if run.result is not None:
            kept = {**run.result, "accuracy_before_fine_tuning": run.before_fine_tuning}
            one["result"] = {key: kept[key] for key in KEPT_OF_RESULTS if kept.get(key) not in (None, [])}
        if run.failure:
            one["failure"] = run.failure
        runs.append(one)
    told = [key for key in versions[0] if key != "platform"]  # a name of the machine says nothing to a reader
    seen = {key: sorted({str(one.get(key)) for one in versions}) for key in told}
    return {"title": records.title, "versions": seen, "settings": shared, "runs": runs}


def brief_text(records: Records) -> str:
    """The same as JSON, one line a run."""
    content = brief(records)
    runs = ",\n".join("  " + json.dumps(run) for run in content.pop("runs"))
    return json.dumps(content, indent=1)[:-2] + ',\n "runs": [\n' + runs + "\n ]\n}\n"


def read_records(path: Path) -> Records:
    """Results that were kept with `brief`."""
    content = read_json(path)
    try:
        return _from_brief(content)
    except (KeyError, TypeError, AttributeError) as error:
        raise LabError(f"{path} is not the results.json of a report ({type(error).__name__}: {error})") from error


def _from_brief(content: Mapping[str, Any]) -> Records:
    versions = {key: ", ".join(values) for key, values in content["versions"].items()}
    runs = []
    for one in content["runs"]:
        settings = validated({**content["settings"], **one["settings"]}, stored=True)
        result = None
        if "result" in one:
            result = {**dict.fromkeys(KEPT_OF_RESULTS), "dead_layers": [], **one["result"]}
        name = settings.folder_name()
        runs.append(Record(name, settings, tuple(one["parts"]), result, one.get("failure", ""), (), versions))
    return Records(content["title"], _merged(runs))


def versions_of(runs: Iterable[Record]) -> str:
    """The versions that runs were made with, in a line."""
    seen: dict[str, set[str]] = {}
    for run in runs:
        for key, value in run.versions.items():
            if key != "platform":
                seen.setdefault(key, set()).add(str(value))
    return ", ".join(f"{key} {' and '.join(sorted(values))}" for key, values in seen.items())
