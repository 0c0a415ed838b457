"""Where the runs of a report are, and where it goes."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from ..errors import LabError
from ..runs.run_folder import MODEL
from ..sweeps.store import Mirror, is_url


def fetched(runs: str, out: Path | None) -> tuple[Path, Path, str]:
    """The folder of the runs, brought here if it is elsewhere; the folder of the report; and the way from it back."""
    if is_url(runs):
        folder = Path(tempfile.mkdtemp(prefix="flipout-report-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        Mirror(runs, folder).fetch(lambda name: name.endswith((".json", ".jsonl")))
        return folder, out or Path("report"), runs.rstrip("/")
    folder = Path(runs)
    if not folder.exists():
        raise LabError(f"there is no {folder}; give the folder of a sweep, for example runs/quick")
    if folder.is_dir() and (folder / MODEL).exists():
        raise LabError(
            f"{folder} is a single run; `flipout show {folder}` shows it, a report is of the folder above it"
        )
    target = out or (folder / "report" if folder.is_dir() else folder.parent / f"{folder.stem}-report")
    return folder, target, os.path.relpath(folder, target)
