"""What the commands share: the application, where they speak, and options made from the settings of a run."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..lab.runs.settings import fields, make_settings

app = typer.Typer(help="Prune networks while they train, and measure what comes out.", no_args_is_help=True)
console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

Folder = Annotated[Path, typer.Argument(help="folder of a run", metavar="RUN")]


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command an option for every setting of a run, and the recipe that they override."""
    given = inspect.signature(command, eval_str=True).parameters
    own = [parameter for name, parameter in given.items() if name != "settings"]
    options = []
    for name, info in fields().items():
        flag = "--" + name.replace("_", "-")
        switch = info.annotation is bool
        declared = typer.Option(
            f"{flag}/--no-{flag[2:]}" if switch else flag, help=info.description, show_default=False
        )
        kind = Annotated[(bool if switch else str) | None, declared]  # type: ignore[valid-type]
        options.append(inspect.Parameter(f"set_{name}", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind))

    def wrapped(**arguments: Any) -> None:
        chosen = {name: value_of(arguments.pop(f"set_{name}")) for name in fields()}
        recipe = arguments.pop("recipe")
        overrides = {name: value for name, value in chosen.items() if value is not None}
        overrides = {name: None if value == "none" else value for name, value in overrides.items()}
        command(settings=make_settings(recipe, **overrides), **arguments)

    recipe = Annotated[str, typer.Option(help="recipe that the options override: default, paper, or a TOML file")]
    leading = inspect.Parameter("recipe", inspect.Parameter.KEYWORD_ONLY, default="default", annotation=recipe)
    parameters = [leading, *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own), *options]
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
    return wrapped


def value_of(text: Any) -> Any:
    """Lists are written with commas: `--milestones 100,150`."""
    return [part for part in text.split(",") if part] if isinstance(text, str) and "," in text else text


def command_line() -> str:
    return " ".join(["flipout", *(f"'{part}'" if " " in part else part for part in sys.argv[1:])])
