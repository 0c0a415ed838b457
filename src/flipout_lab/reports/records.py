"""Read the runs of a folder: their settings, results, metrics, and the parts of the grid they belong to."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic_core import to_jsonable_python

from ..errors import LabError, unknown
from ..runs.method_options import NONE, REQUIRED, find_method_or_none, options_of
from ..runs.run_folder import CONFIG, MODEL, RESULT, accuracy_in, read_config, read_metrics, read_result
from ..runs.settings import Settings, validated
from ..stored_formats import FAILURE_FORMAT, RESULTS_FORMAT, SAVED_RESULT_FORMAT, SWEEP_FORMAT, read_stored
from ..sweeps.execution import FAILURE, SWEEP, KnownResult
from ..sweeps.store import RunMirror, is_url

# Settings that change how a run is executed or observed, but not what is trained.
EXECUTION_SETTINGS = {"compile", "threads", "device", "aim", "shrink"}
Key = TypeVar("Key")
SAVED_RESULT_KEYS = tuple(SAVED_RESULT_FORMAT.model_fields)


@dataclass(frozen=True)
class Record:
    """A run. If it has no result, it is not finished, or it failed for the reason in `failure`."""

    name: str
    settings: Settings
    parts: tuple[str, ...]
    result: Mapping[str, Any] | None = None
    failure: str = ""
    metrics: Sequence[Mapping[str, Any]] = ()
    versions: Mapping[str, Any] = field(default_factory=dict)

    @property
    def accuracy(self) -> float | None:
        """The accuracy of the last epoch, never of the best."""
        return None if self.result is None else accuracy_in(self.result)

    @property
    def is_pruned(self) -> bool:
        return self.settings.method != "dense" or self.settings.option("one_shot") is not None

    @property
    def before_fine_tuning(self) -> float | None:
        """The accuracy after pruning and before the additional epochs of a method with fine-tuning (Hoyer-Square)."""
        if self.result is None or self.settings.total_epochs == self.settings.epochs:
            return None
        if (saved := self.result.get("accuracy_before_fine_tuning")) is not None:
            return float(saved)
        if len(self.metrics) <= self.settings.epochs:
            return None
        return accuracy_in(self.metrics[self.settings.epochs - 1])

    @property
    def sparsity(self) -> float | None:
        """The requested sparsity, or the sparsity reached if none was requested."""
        if self.settings.sparsity is None:
            return None if self.result is None else float(self.result["sparsity"])
        return self.settings.sparsity


@dataclass(frozen=True)
class Records:
    title: str
    runs: tuple[Record, ...]

    @property
    def parts(self) -> list[str]:
        return list(dict.fromkeys(part for run in self.runs for part in run.parts))

    def in_part(self, part: str) -> list[Record]:
        return [run for run in self.runs if part in run.parts]


def grouped(runs: Iterable[Record], key: Callable[[Record], Key | None]) -> dict[Key, list[Record]]:
    """The runs by a key, in their order, without those whose key is None."""
    groups: dict[Key, list[Record]] = {}
    for run in runs:
        if (found := key(run)) is not None:
            groups.setdefault(found, []).append(run)
    return groups


def pooled(all_records: Iterable[Records]) -> Records:
    """The runs of several sweeps together. A run of two sweeps is in the parts of both."""
    listed = list(all_records)
    return Records(", ".join(records.title for records in listed), _merged(run for each in listed for run in each.runs))


def collect(folder: Path, grid: str | None = None) -> Records:
    """Read all runs of a sweep, including runs that were never started, or the runs in any other folder.

    Args:
        folder: the folder of the sweep. A file is read as the results.json of an earlier report.
        grid: read only the runs of this grid, if the folder has several.
    """
    if folder.is_file():
        if grid is not None:
            raise LabError(f"{folder} is a file; --grid needs the folder of a sweep")
        return read_records(folder)
    sweep: dict[str, Any] = {"grids": {}, "runs": {}}
    if (folder / SWEEP).exists():
        sweep = read_stored(folder / SWEEP, SWEEP_FORMAT, "move it away, or start the sweep again")
    if grid is not None:
        if grid not in sweep["grids"]:
            raise unknown(f"grid in {folder}:", grid, sweep["grids"])
        sweep["grids"] = {grid: sweep["grids"][grid]}
    parts: dict[str, list[str]] = {name: [] for name in sweep["runs"]} if grid is None else {}
    for each in sweep["grids"].values():
        for part, names in each["parts"].items():
            for name in names:
                parts.setdefault(name, []).append(part)
    if grid is None:
        for path in sorted(folder.glob(f"*/{CONFIG}")):
            parts.setdefault(path.parent.name, ["runs"])
    if not parts:
        raise LabError(f"{folder} contains no runs; give the folder of a sweep, for example runs/quick")
    planned, known = sweep["runs"], sweep.get("known", {})
    runs = [
        _read_run(folder / name, tuple(of_run), planned.get(name, {}), known.get(name))
        for name, of_run in parts.items()
    ]
    title = ", ".join(each["title"] for each in sweep["grids"].values()) or folder.name
    return Records(title, _merged(runs))


def _merged(runs: Iterable[Record]) -> tuple[Record, ...]:
    """One record for all runs with the same settings: the first with a result, in the parts of all of them."""
    merged: dict[str, Record] = {}
    for run in runs:
        key = run.settings.folder_name()
        before = merged.get(key, run)
        chosen = run if before.result is None and run.result is not None else before
        merged[key] = replace(chosen, parts=tuple(dict.fromkeys((*before.parts, *run.parts))))
    return tuple(merged.values())


def _read_run(folder: Path, parts: tuple[str, ...], planned: Mapping[str, Any], known: KnownResult | None) -> Record:
    """The record of a run: from its folder if it has finished there, else from what is known of it."""
    if known is not None and not (folder / RESULT).exists():
        return Record(folder.name, validated(planned, stored=True), parts, known["result"], versions=known["versions"])
    started = (folder / CONFIG).exists()
    config = read_config(folder) if started else {"settings": planned, "versions": {}}
    result = read_result(folder) if (folder / RESULT).exists() else None
    failure = ""
    if result is None and (folder / FAILURE).exists():
        failure = read_stored(folder / FAILURE, FAILURE_FORMAT, "delete it")["error"]
    settings = validated(config["settings"], stored=True)
    return Record(folder.name, settings, parts, result, failure, tuple(read_metrics(folder)), config["versions"])


def known_results(path: Path) -> dict[str, KnownResult]:
    """What the `results.json` of a report knows of the runs that have finished, by the name of the run."""
    finished = [run for run in collect(path).runs if run.result is not None]
    return {run.name: {"result": run.result, "versions": run.versions} for run in finished}


def results_json(records: Records) -> str:
    """The results as JSON, small enough to store: one line per run; settings that all runs share are written once."""
    described = [run.settings.as_dict() for run in records.runs]
    shared = {
        key: value
        for key, value in described[0].items()
        if all(key in each and each[key] == value for each in described) and (value is not None or key == "sparsity")
    }
    runs = []
    for run, settings in zip(records.runs, described, strict=True):
        named = (run.settings.non_defaults().keys() | {"method", "sparsity", "seed"}) - shared.keys()
        entry: dict[str, Any] = {
            "settings": {key: value for key, value in settings.items() if key in named},
            "parts": list(run.parts),
        }
        if run.result is not None:
            result = {**run.result, "accuracy_before_fine_tuning": run.before_fine_tuning}
            if run.settings.sparsity is not None:
                result.pop("layers", None)  # many numbers; of interest where the sparsity is an outcome
            entry["result"] = {key: result[key] for key in SAVED_RESULT_KEYS if result.get(key) not in (None, [])}
        if run.failure:
            entry["failure"] = run.failure
        runs.append(json.dumps(entry))
    seen = {name: sorted(values) for name, values in _versions(records.runs).items()}
    defaults = current_defaults(run.settings.method for run in records.runs)
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(of)}" for name, of in defaults.items())
    listed = ",\n  ".join(runs)
    head = json.dumps({"title": records.title, "versions": seen, "settings": shared}, indent=1)[:-2]
    return f'{head},\n "defaults": {{\n{lines}\n }},\n "runs": [\n  {listed}\n ]\n}}\n'


def read_records(path: Path) -> Records:
    stored = read_stored(path, RESULTS_FORMAT, "it is not the results.json of a report")
    content = RESULTS_FORMAT.model_validate(stored).model_dump()
    versions = {key: ", ".join(values) for key, values in content["versions"].items()}
    changed, runs = changed_defaults(content["defaults"]), []
    for entry in content["runs"]:
        given = {**content["settings"], **entry["settings"]}
        settings = validated({**changed.get(given.get("method", ""), {}), **given}, stored=True)
        parts = tuple(entry["parts"])
        runs.append(Record(settings.folder_name(), settings, parts, entry["result"], entry["failure"], (), versions))
    return Records(content["title"], _merged(runs))


def _versions(runs: Iterable[Record]) -> dict[str, set[str]]:
    """The versions of the software of all runs, without the name of the machine."""
    seen: dict[str, set[str]] = {}
    for run in runs:
        for key, value in run.versions.items():
            if key != "platform":
                seen.setdefault(key, set()).update(str(value).split(", "))  # those of all runs of a stored report
    return seen


def versions_of(runs: Iterable[Record]) -> str:
    """The versions of the software of all runs, in one line."""
    return ", ".join(f"{key} {' and '.join(sorted(values))}" for key, values in _versions(runs).items())


def current_defaults(methods: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The default of every option of these methods, as plain data. Methods that cannot be imported are left out."""
    found = {}
    for method in sorted(set(methods)):
        if (record := find_method_or_none(method)) is not None:
            defaults = {
                key: option.default for key, option in options_of(record).items() if option.default is not REQUIRED
            }
            found[method] = to_jsonable_python({key: NONE if v is None else v for key, v in defaults.items()})
    return found


def changed_defaults(stored: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The stored defaults that are different now, by method. Options that a method no longer has are left out."""
    now = current_defaults(stored)
    return {
        method: {key: value for key, value in options.items() if key in now[method] and now[method][key] != value}
        for method, options in stored.items()
        if method in now
    }


class RunLocation(NamedTuple):
    """Where the runs are, where the report goes, and how the report's links lead back to the runs."""

    runs: Path
    report: Path
    links: str


def locate_runs(runs: str, out: Path | None = None) -> RunLocation:
    """Find the folder or results file of a sweep. The results at a URL are copied to a temporary folder first."""
    if is_url(runs):
        folder = Path(tempfile.mkdtemp(prefix="flipout-report-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        RunMirror(runs, folder).fetch(lambda name: name.endswith((".json", ".jsonl")))
        return RunLocation(folder, out or Path("report"), runs.rstrip("/"))
    folder = Path(runs)
    if not folder.exists():
        raise LabError(f"{folder} does not exist; give the folder of a sweep, for example runs/quick")
    if folder.is_dir() and (folder / MODEL).exists():
        raise LabError(
            f"{folder} is a single run; show it with `flipout show {folder}`, or give the folder that contains it"
        )
    report = out or (folder / "report" if folder.is_dir() else folder.parent / f"{folder.stem}-report")
    return RunLocation(folder, report, os.path.relpath(folder, report))
