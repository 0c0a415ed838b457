"""The network of a run in a form to deploy, checked against the run's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from flipout import export
from flipout.export.costs import readable
from flipout.export.formats.verification import TOLERANCE
from flipout.graph.comparison import unlike

from ..errors import LabError, unknown
from .run_folder import CONFIG, MODEL, network_shape
from .training import load_run

CHECKED = 100
"""Random images that every export is checked with."""


@dataclass(frozen=True)
class Form:
    """A form to export to: how its files end, what writes one, what reads and runs it, and how a user does."""

    suffix: str
    write: Callable[[nn.Module, Path, Tensor], object]
    run: Callable[[nn.Module, Path, Tensor], Tensor]
    reading: str


def _write_compact(model: nn.Module, path: Path, example: Tensor) -> object:
    return export.to_pt2(export.compact(model, example), path, example)


def _run_compact(model: nn.Module, path: Path, images: Tensor) -> Tensor:
    output: Tensor = torch.export.load(path).module()(images)
    return output


def _run_sparse(model: nn.Module, path: Path, images: Tensor) -> Tensor:
    model.load_state_dict(export.load(path))
    output: Tensor = model(images)
    return output


def _write_onnx(model: nn.Module, path: Path, example: Tensor) -> object:
    return export.to_onnx(export.compact(model, example), path, example)


def _run_onnx(model: nn.Module, path: Path, images: Tensor) -> Tensor:
    from flipout.export.formats.onnx_file import feed, session

    runtime = session(path)
    (output,) = runtime.run(None, feed(runtime, (images,)))
    return torch.from_numpy(output)


FORMS = {
    "compact": Form(".pt2", _write_compact, _run_compact, "torch.export.load({path!r}).module()"),
    "sparse": Form(
        ".safetensors",
        lambda model, path, _: export.save(model, path),
        _run_sparse,
        "model.load_state_dict(flipout.export.load({path!r}))",
    ),
    "onnx": Form(".onnx", _write_onnx, _run_onnx, "onnxruntime.InferenceSession({path!r})"),
}


@torch.no_grad()
def export_run(folder: Path, to: str, out: Path) -> tuple[Path, Table]:
    """Writes the network of a finished run, runs the file on random images, and tells what came of it."""
    if to not in FORMS:
        raise unknown("form", to, FORMS)
    form = FORMS[to]
    path = out if out.suffix == form.suffix else out.with_name(out.name + form.suffix)
    if not path.parent.is_dir():
        raise LabError(f"there is no folder {path.parent}; make it first, or choose another --out")
    model, images = load_with_images(folder)
    try:
        form.write(model, path, images[:1])
    except (ValueError, ImportError, OSError) as error:
        raise LabError(f"{folder} could not be exported: {error}") from error
    expected, found = model(images), form.run(model, path, images)
    if difference := unlike(expected, found, TOLERANCE):
        path.unlink()
        raise LabError(f"{folder} could not be exported: the file gives other outputs than the network ({difference})")
    table = Table(show_header=False)
    table.add_column()
    table.add_column(overflow="fold")  # to be copied, so nothing may be cut off
    sizes = (folder / MODEL).stat().st_size, path.stat().st_size
    for name, value in (
        ("file", str(path)),
        ("size", readable(sizes[1])),
        ("the run's own file", f"{readable(sizes[0])}, {sizes[0] / sizes[1]:.1f} times as large"),
        (
            "largest difference",
            f"{float((expected - found).abs().max()):.3g}, in outputs of {len(images)} random images",
        ),
        ("same answers", f"{int((expected.argmax(1) == found.argmax(1)).sum())} of {len(images)}"),
        ("to read it", form.reading.format(path=str(path))),
    ):
        table.add_row(name, Text(value))
    return path, table


def load_with_images(folder: Path) -> tuple[nn.Module, Tensor]:
    """The network of a finished run, and random images of the shape that it takes. The data set is not read."""
    inside = sorted(each.parent for each in folder.glob(f"*/{CONFIG}"))
    if not (folder / CONFIG).exists() and inside:
        raise LabError(f"{folder} is not a run but holds {len(inside)} of them: name one, such as {inside[0]}")
    model = load_run(folder)
    shape, _ = network_shape(folder)
    return model, torch.randn(CHECKED, *shape, generator=torch.Generator().manual_seed(0))
