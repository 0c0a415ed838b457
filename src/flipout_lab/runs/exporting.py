"""Export the network of a run to a file, and check the file against the network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from flipout import export
from flipout.channels.comparison import describe_difference, largest_difference
from flipout.export.costs import format_bytes
from flipout.export.formats import OUTPUT_TOLERANCE, open_session, run_session

from ..errors import LabError, unknown
from ..tables import Table
from .networks import load_run
from .run_folder import CONFIG, MODEL, network_shape

CHECKED_IMAGES = 100
"""The number of random images that every export is checked with."""


@dataclass(frozen=True)
class ExportFormat:
    """A format to export to."""

    suffix: str
    write: Callable[[nn.Module, Path, Tensor], object]  # a network to a file, given an example of its input
    run: Callable[[nn.Module, Path, Tensor], Tensor]  # loads a file and runs it on images; it may use the network
    loading: str  # the code that loads a file, for the user


def _run_sparse(model: nn.Module, path: Path, images: Tensor) -> Tensor:
    model.load_state_dict(export.load(path))
    output: Tensor = model(images)
    return output


FORMATS = {
    "compact": ExportFormat(
        ".pt2",
        lambda model, path, example: export.to_pt2(export.compact(model, example), path, example),
        lambda model, path, images: torch.export.load(path).module()(images),
        "torch.export.load({path!r}).module()",
    ),
    "sparse": ExportFormat(
        ".safetensors",
        lambda model, path, example: export.save(model, path),
        _run_sparse,
        "model.load_state_dict(flipout.export.load({path!r}))",
    ),
    "onnx": ExportFormat(
        ".onnx",
        lambda model, path, example: export.to_onnx(export.compact(model, example), path, example),
        lambda model, path, images: run_session(open_session(path), (images,))[0],
        "onnxruntime.InferenceSession({path!r})",
    ),
}


@torch.no_grad()
def export_run(folder: Path, to: str, out: Path) -> tuple[Path, Table]:
    """Write the network of a finished run to a file, run the file on random images, and report the result."""
    if to not in FORMATS:
        raise unknown("format", to, FORMATS)
    target = FORMATS[to]
    path = out if out.suffix == target.suffix else out.with_name(out.name + target.suffix)
    if not path.parent.is_dir():
        raise LabError(f"the folder {path.parent} does not exist: create it first, or choose another --out")
    model, images = load_with_images(folder)
    try:
        target.write(model, path, images[:1])
    except (ValueError, ImportError, OSError) as error:
        raise LabError(f"{folder} could not be exported: {error}") from error
    expected, found = model(images), target.run(model, path, images)
    if difference := describe_difference(expected, found, OUTPUT_TOLERANCE):
        path.unlink()
        raise LabError(
            f"{folder} could not be exported: the outputs of the file differ from those of the network ({difference})"
        )
    sizes = (folder / MODEL).stat().st_size, path.stat().st_size
    difference = f"{largest_difference(expected, found):.3g}"
    rows = [
        ("file", str(path)),
        ("size", format_bytes(sizes[1])),
        ("size of the run's model file", f"{format_bytes(sizes[0])}, {sizes[0] / sizes[1]:.1f} times as large"),
        ("largest difference", f"{difference}, in outputs for {len(images)} random images"),
        ("same predictions", f"{int((expected.argmax(1) == found.argmax(1)).sum())} of {len(images)}"),
        ("to load it", target.loading.format(path=str(path))),
    ]
    return path, Table("", (), rows, texts=(0, 1))


def load_with_images(folder: Path) -> tuple[nn.Module, Tensor]:
    """Return the network of a finished run, and random images of its input shape. The data set is not read."""
    runs = sorted(each.parent for each in folder.glob(f"*/{CONFIG}"))
    if not (folder / CONFIG).exists() and runs:
        raise LabError(f"{folder} is not a run but contains {len(runs)} of them: choose one, such as {runs[0]}")
    model = load_run(folder)
    shape, _ = network_shape(folder)
    return model, torch.randn(CHECKED_IMAGES, *shape, generator=torch.Generator().manual_seed(0))
