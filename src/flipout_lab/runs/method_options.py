"""Methods by name, and their options.

A `MethodOption` is the one form of an option. It is read from the constructor of the method. The field of the settings
follows from it (`settings.py`), from that field the option of the command line (`cli/application.py`), and `argument`
names the argument of the constructor that takes the value (`pruning.py`).
"""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import dataclass, fields
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import (
    BeforeValidator,
    Field,
    PydanticSchemaGenerationError,
    TypeAdapter,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic.fields import FieldInfo

import flipout
from flipout import METHODS, FlipOut, Geometric, GradientNoise, Method, Pruner
from flipout.methods.options import InSteps
from flipout.methods.registry import PALETTE, argument_texts
from flipout.units import as_granularity

from ..errors import LabError, find, unknown

SecondChances = flipout.SecondChances
OneShotMethod = Literal["obs", "wanda", "magnitude", "fisher"]
SECOND_CHANCES = "second_chances"
"""The argument of a pruner that takes `SecondChances`, the option that says whether, and the prefix of its settings."""

NONE = "none"
"""How None is written in recipes, grids, on the command line and in stored settings."""

REQUIRED = inspect.Parameter.empty
"""The default of an option that must be given."""

LARGEST_FLOAT = 1e30
"""Larger numbers overflow in float32."""

LARGEST_INT = 2**63 - 1

AtLeastOne = Annotated[int, Field(ge=1, le=1_000_000)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Steps = Annotated[str, Field(pattern=r"^\d+ steps$")]


@dataclass(frozen=True)
class MethodOption:
    """One option of a method, as the lab offers it."""

    key: str
    annotation: Any
    default: Any
    about: str
    argument: str = ""
    """The argument of the constructor that takes it as it is; empty where the lab makes something of it."""
    own: bool = False
    """Whether it belongs to this method only."""
    in_epochs: bool = False
    """Whether it is given in epochs, where the constructor counts steps."""
    default_text: str = ""
    """The default for a reader, where the value alone does not tell."""

    @property
    def shown_default(self) -> str:
        return self.default_text or shown(self.default)

    def field(self) -> tuple[Any, FieldInfo]:
        """The type and the field of the settings that hold this option."""
        panel = "This method only" if self.own else "Pruning"
        default = ... if self.default is REQUIRED else self.default
        extra: dict[str, Any] = {"panel": panel, "default": self.default_text}
        checked: Any = (self.annotation, WrapValidator(self._validate))
        return Annotated[checked], Field(default, alias=self.key, description=self.about, json_schema_extra=extra)

    def _validate(self, value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        """Read a value from text, and refuse NaN, infinity and huge numbers, unless one of them is the default."""
        value = read_text(self.annotation, value)
        if self.in_epochs and accepts_none(self.annotation) and str(value).startswith("-"):
            value = None
        if value == self.default:
            return self.default
        value = validate(value)
        for each in value if isinstance(value, (list, tuple, set)) else (value,):
            if isinstance(each, float) and not abs(each) <= LARGEST_FLOAT:
                raise ValueError(f"give a finite number of at most {LARGEST_FLOAT:g}")
            if isinstance(each, int) and abs(each) > LARGEST_INT:
                raise ValueError("give a number of at most 2^63 - 1")
        return value


def find_method(name: str) -> Method:
    """Return the record of a method: a registered one, or a class of the user as `module:Class`."""
    if ":" not in name:
        if name not in METHODS:
            raise unknown("method", name, [*METHODS, "module:Class"])
        return METHODS[name]
    cls: Any = find(name, "class")
    if Pruner not in getattr(cls, "__mro__", ()):
        raise LabError(f"{name} is not a method: it is not a subclass of flipout.Pruner")
    return _record_of(name, cls)


@cache  # a record reads the signature of its class once
def _record_of(name: str, cls: Any) -> Method:
    record = METHODS.record_of(cls, name)
    try:
        _ = record.parameters
    except NameError as error:
        raise LabError(f"the annotations of {name} cannot be resolved: {error}") from error
    return record


def find_method_or_none(name: str) -> Method | None:
    """Return the record of a method, or None where it cannot be imported: results outlive the code they came from."""
    try:
        return find_method(name)
    except Exception:  # importing a user's module may raise anything
        return None


def method_title(name: str) -> str:
    record = find_method_or_none(name)
    return name if record is None else record.title


def method_colour(name: str) -> str:
    record = find_method_or_none(name)
    return PALETTE[hashlib.sha256(name.encode()).digest()[0] % len(PALETTE)] if record is None else record.colour


@cache
def options_of(record: Method) -> dict[str, MethodOption]:
    """Return every option that the lab offers for a method, by key: when to prune, common ones, its own."""
    offered = [*_schedule_options(record), *_common_options(record), *_own_options(record), *_loop_options(record)]
    return {option.key: option for option in offered}


def all_option_keys() -> set[str]:
    return {key for record in METHODS.values() for key in options_of(record)}


def _schedule_options(record: Method) -> list[MethodOption]:
    if not record.takes_schedule:
        return []
    usual = "100, or fewer in a short run"
    return [
        MethodOption("schedule", Literal["default", "paper", "cubic", "one-shot"], "default", "when to prune"),
        MethodOption("prunings", AtLeastOne | None, None, "number of prunings", default_text=usual),
        MethodOption("start", Share, Geometric.window[0], "share of training at which pruning starts"),
        MethodOption("end", Share, Geometric.window[1], "share of training at which the last pruning happens"),
    ]


COMMON: dict[str, tuple[Any, str]] = {
    "scope": (Literal["global", "layer"], "rank weights over the whole network, or in each layer"),
    "floor": (Annotated[int | float, Field(ge=0)], "number or share of its weights that every layer keeps"),
    "granularity": (
        Annotated[str, BeforeValidator(lambda value: str(as_granularity(value)))],
        "unit to prune: weight, kernel, channel, 16x1, 2:4",
    ),
    "reduce": (Literal["mean", "sum", "norm"], "how the scores of the weights of a unit become one"),
    "target": (
        Literal["weights", "macs", "parameters", "latency"],
        "what the sparsity is a share of, for whole channels",
    ),
    "round_to": (AtLeastOne, "each layer keeps a multiple of this many channels"),
    "residual": (bool, "prune channels that norms mix too, such as those of a residual stream"),
    "dead_first": (bool, "prune weights on no live path from the input to the output first"),
}
"""Options of every pruner that are passed on as they are: their types and texts."""


def _common_options(record: Method) -> list[MethodOption]:
    offered = [
        MethodOption(key, kind, _default(record, key), about, argument=key)
        for key, (kind, about) in COMMON.items()
        if key in record.common
    ]
    if "noise" in record.common:
        noise = _default(record, "noise")
        usual = noise if isinstance(noise, GradientNoise) else GradientNoise(0.0 if noise is None else noise)
        scale, relative_to = None if noise is None else usual.scale, usual.relative_to
        offered += [
            MethodOption("noise", NotNegative | None, scale, "scale of the gradient noise, the paper's lambda"),
            MethodOption("relative_to", Literal["gradient", "weight"], relative_to, "what the noise is relative to"),
        ]
    if SECOND_CHANCES in record.common:
        texts, hints = argument_texts(SecondChances), get_type_hints(SecondChances)
        default, about = _default(record, SECOND_CHANCES), "let pruned weights keep learning and come back"
        chances = default if isinstance(default, SecondChances) else SecondChances()
        offered.append(MethodOption(SECOND_CHANCES, bool, bool(default), about))
        offered += [
            MethodOption(f"{SECOND_CHANCES}_{name}", hints[name], getattr(chances, name), texts[name].rstrip("."))
            for name in (field.name for field in fields(SecondChances))
        ]
    return offered


def _default(record: Method, name: str) -> Any:
    """Return the default of an option that every pruner has: the method's own, or that of `Pruner`."""
    parameter = record.parameters.get(name) or inspect.signature(Pruner.__init__).parameters[name]
    return parameter.default


def takes_criterion(record: Method) -> bool:
    """Whether a criterion of the user can take the place of the method's own."""
    return issubclass(record.cls, FlipOut)


def _loop_options(record: Method) -> list[MethodOption]:
    """Options for what a method needs from the training loop, the criterion that takes the place of its own, and what
    happens to a dense network after its training."""
    options = []
    if takes_criterion(record):
        about = "score weights by this module:function instead"
        options.append(MethodOption("criterion", str | None, None, about, own=True, default_text="flip saliency"))
    if record.needs.batches:
        about = "batches of training data to compute scores from"
        options.append(MethodOption("batches", AtLeastOne, record.needs.batches, about, own=True))
    if share := record.needs.further_epochs:
        kind, about = Annotated[float, Field(ge=0, le=1000)], "epochs after the pruning, as a share of --epochs"
        options.append(MethodOption("fine_tune", kind, share, about, own=True, default_text=f"{share:.3g}"))
    if record.name == "dense":
        about = "prune the trained network in one shot, with this method"
        options.append(MethodOption("one_shot", OneShotMethod | None, None, about, own=True))
        about = "after --one-shot, estimate the statistics of batch norms again"
        options.append(MethodOption("recalibrate", bool, True, about, own=True))
    return options


def _own_options(record: Method) -> list[MethodOption]:
    options = []
    for option in record.options.values():
        kind, default, about = option.annotation, option.default, option.about.rstrip(".")
        if kind is Any and default is not None and default is not REQUIRED:
            kind = type(default)
        if in_epochs := InSteps in get_args(kind)[1:]:
            kind = float | Steps | None if accepts_none(kind) else NotNegative | Steps
            about = f"{about} (in epochs)".strip()
            if isinstance(default, int):
                default = f"{default} steps" if default else 0.0  # the length of an epoch varies
        if option.name == "p" and takes_criterion(record):
            kind = kind | None  # none: that of the user's criterion
        try:
            TypeAdapter(kind)
        except PydanticSchemaGenerationError:
            if default is REQUIRED:
                raise LabError(
                    f"{record.name} needs the argument {option.name} of type {kind}, which cannot be written as text; "
                    "give it a default value to use the method in the lab"
                ) from None
            continue  # such as a function: to be set in Python only
        options.append(MethodOption(option.key, kind, default, about, option.name, own=True, in_epochs=in_epochs))
    return options


def read_text(annotation: Any, value: Any) -> Any:
    """Read what only text can say: "none", and lists with commas."""
    if not isinstance(value, str):
        return value
    if value == NONE and accepts_none(annotation):
        return None
    if any(get_origin(kind) in (tuple, list, set) or kind in (tuple, list, set) for kind in alternatives(annotation)):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def accepts_none(annotation: Any) -> bool:
    return type(None) in alternatives(annotation)


def alternatives(annotation: Any) -> tuple[Any, ...]:
    """Return the types of a union, without their metadata; any other type is the only one."""
    if get_origin(annotation) is Annotated:
        return () if annotation == Steps else alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return tuple(kind for part in get_args(annotation) for kind in alternatives(part))
    return (annotation,)


def shown(value: Any) -> str:
    """A value as it is written on the command line."""
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (tuple, list)):
        return ",".join(map(shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
