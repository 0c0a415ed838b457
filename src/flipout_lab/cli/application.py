"""What the commands share: the application and its consoles."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperCommand

from ..errors import LabError
from ..runs.method_options import all_option_keys, alternatives, find_method, shown
from ..runs.settings import chosen_recipe, fields, flag, make_settings, not_taken, settings_class

app = typer.Typer(help="Prune networks while they train, and measure the result.", no_args_is_help=True)
# Names of the user are printed as they are: no highlighting, and ":smile:" is not an emoji.
console = Console(highlight=False, emoji=False)
errors = Console(stderr=True, highlight=False, emoji=False)

Folder = Annotated[Path, typer.Argument(help="folder of a run", metavar="RUN")]


def command_line() -> str:
    return shlex.join(["flipout", *sys.argv[1:]])


OWN = "This method only"
PANELS = ("Data", "Network", "Training", "Pruning", OWN, "Output")
PREFIX = "set_"
"""Of the parameters that are settings, to tell them from those of the command itself."""

TYPE_NAMES = {int: "INT", float: "FLOAT", str: "TEXT", bool: "yes|no"}
WIDEST_CHOICES = 16
"""Longer choices than this many characters leave too little room for the help text beside them."""
METAVARS = {
    **{"init": "FILE", "granularity": "UNIT"},
    **dict.fromkeys(("criterion", "data", "model", "method", "device"), "NAME"),
}


class SettingsCommand(TyperCommand):
    """A command with an option for every setting. The chosen method decides which of them there are."""

    command: Callable[..., None]

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        completing = extra.get("resilient_parsing") or getattr(parent, "resilient_parsing", False)
        try:
            recipe, method = chosen_recipe(_last(args, "--recipe") or "default", _last(args, "--method"))
            function = with_options(type(self).command, recipe, method)
            check_flags(args, method)
        except LabError:
            if not completing:
                raise
            function = with_options(type(self).command, {}, fields()["method"].default)  # a name that is half typed
        single = typer.Typer(add_completion=False)
        single.command()(function)
        built = typer.main.get_command(single)
        self.params, self.callback = built.params, built.callback
        return super().make_context(info_name, args, parent, **extra)

    def format_help(self, context: Any, formatter: Any) -> None:
        """Leave out the column of --no-... options, which would cut long names off; the help texts have them."""
        for parameter in self.params:
            parameter.secondary_opts = []
        super().format_help(context, formatter)


def settings_command(app: typer.Typer) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a command that takes `settings` to an application."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        def placeholder() -> None:
            """The real parameters and the call depend on the arguments."""

        placeholder.__name__, placeholder.__doc__ = command.__name__, command.__doc__
        app.command(cls=type("OneSettingsCommand", (SettingsCommand,), {"command": staticmethod(command)}))(placeholder)
        return command

    return add


def _last(args: Sequence[str], option: str) -> str | None:
    found = None
    for number, token in enumerate(args):
        if token == "--":
            break
        if token == option and number + 1 < len(args):
            found = args[number + 1]
        elif token.startswith(f"{option}="):
            found = token.partition("=")[2]
    return found


def check_flags(args: Sequence[str], method: str) -> None:
    """Explain an option that belongs to another method, where the parser would only call it unknown."""
    others = all_option_keys() - fields(settings_class(find_method(method))).keys()
    known = {name: key for key in others for name in (flag(key), f"--no-{flag(key)[2:]}")}
    for token in args:
        if (key := known.get(token.partition("=")[0])) is not None:
            raise not_taken(key, method)


def with_options(command: Callable[..., None], recipe: dict[str, Any], method: str) -> Callable[..., None]:
    """Return a function with a parameter for every setting, which calls the command with the settings they make."""
    own = {name: p for name, p in inspect.signature(command, eval_str=True).parameters.items() if name != "settings"}

    def run(**arguments: Any) -> None:
        given = {key.removeprefix(PREFIX): arguments.pop(key) for key in list(arguments) if key.startswith(PREFIX)}
        overrides = {key: value for key, value in given.items() if value is not None}
        command(settings=make_settings(arguments.pop("recipe"), **overrides), **arguments)

    about = "recipe that the other options override: default, paper, or a TOML file"
    annotation = Annotated[str, typer.Option(help=about, metavar="NAME|FILE")]
    parameters = [_parameter("recipe", annotation, "default"), *_settings_parameters(recipe, method)]
    parameters += [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own.values()]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def _settings_parameters(recipe: dict[str, Any], method: str) -> list[inspect.Parameter]:
    """The parameters of the settings and of the options of the method, in the order of the panels."""
    placed: list[tuple[str, inspect.Parameter]] = []
    for key, field in fields(settings_class(find_method(method))).items():
        extra: Any = field.json_schema_extra
        panel, default = extra["panel"], field.default
        text = extra.get("default") or ("" if default in (None, "") and key in fields() else shown(default))
        if key in recipe:
            text = shown(recipe[key])
        elif field.is_required():
            text = "required"
        title = f"{panel}: {method}" if panel == OWN else panel
        placed.append((panel, _option(key, field.annotation, field.description or "", text, title)))
    return [parameter for panel in PANELS for place, parameter in placed if place == panel]


def _option(key: str, annotation: Any, about: str, default: str, panel: str) -> inspect.Parameter:
    """A parameter that takes text, for the settings to validate, and shows its real type and default."""
    switch, name, metavar = alternatives(annotation) == (bool,), flag(key), METAVARS.get(key, type_name(annotation))
    if len(metavar) > WIDEST_CHOICES:
        about, metavar = f"{about}: {metavar.replace('|', ', ')}", "NAME"
    if switch and default == "yes":
        default += f"; --no-{name[2:]}"
    note = {"": "", "required": " [red]\\[required][/]"}.get(default, f" [dim]\\[default: {escape(default)}][/]")
    declared = typer.Option(
        f"{name}/--no-{name[2:]}" if switch else name,
        help=escape(about) + note,
        show_default=False,
        metavar="" if switch else metavar,
        rich_help_panel=escape(panel),
    )
    return _parameter(PREFIX + key, Annotated[(bool if switch else str) | None, declared], None)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def type_name(annotation: Any) -> str:
    """A type as a help text shows it: INT, FLOAT, INT,INT,... or the choices."""
    names: list[str] = []
    for kind in alternatives(annotation):
        if get_origin(kind) is Literal:
            names += map(str, get_args(kind))
        elif get_origin(kind) in (tuple, list, set):
            inner = type_name(get_args(kind)[0]) if get_args(kind) else "TEXT"
            names.append(f"{inner},...")
        elif kind is not type(None):
            names.append(TYPE_NAMES.get(kind, "TEXT"))
    return "|".join(dict.fromkeys(names))
