"""Find the runs of a report, and the folder to write it to."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from ..errors import LabError
from ..runs.run_folder import MODEL
from ..sweeps.store import RunMirror, is_url


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
