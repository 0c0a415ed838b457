"""The options of a method in recipes, grids and on the command line, read from the record of the method."""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import dataclass, fields
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BeforeValidator, Field, PydanticSchemaGenerationError, TypeAdapter

from flipout import METHODS, FlipOut, Geometric, GradientNoise, Method, Pruner, Revival
from flipout.granularity import as_granularity
from flipout.methods.options import InSteps
from flipout.methods.registry import PALETTE, argument_texts

from ..errors import LabError, unknown
from ..plugins import find_class


def find_method(name: str) -> Method:
    """Return the record of a method. An unknown name is an error that suggests the nearest."""
    if ":" not in name:
        if name not in METHODS:
            raise unknown("method", name, [*METHODS, "module:Class"])
        return METHODS[name]
    cls = find_class(name)
    if not issubclass(cls, Pruner):
        raise LabError(f"{name} is not a method: it is not a subclass of flipout.Pruner")
    key: Any = cls  # a class is hashable, whatever mypy makes of its instances
    return _record_of(key, name)


@cache  # a record reads the signature of its class once
def _record_of(cls: Any, name: str) -> Method:
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
    """Return the name of a method in reports."""
    record = find_method_or_none(name)
    return name if record is None else record.title


def method_colour(name: str) -> str:
    """Return the colour of a method in figures."""
    record = find_method_or_none(name)
    return PALETTE[hashlib.sha256(name.encode()).digest()[0] % len(PALETTE)] if record is None else record.colour


NONE = "none"
"""How None is written in recipes, grids, on the command line and in stored settings."""

REQUIRED = inspect.Parameter.empty
"""The default of an option that must be given."""

IN_STEPS = object()
"""The default of an option in epochs whose constructor counts a number of steps: the length of an epoch varies."""

LARGEST_FLOAT = 1e30
"""Larger numbers overflow in float32."""

LARGEST_INT = 2**63 - 1

AtLeastOne = Annotated[int, Field(ge=1, le=1_000_000)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
GranularityText = Annotated[str, BeforeValidator(lambda value: str(as_granularity(value)))]


@dataclass(frozen=True)
class MethodOption:
    """One option of a method, as the lab offers it."""

    key: str
    annotation: Any
    default: Any
    about: str
    own: bool = False
    """Whether it belongs to this method only."""
    argument: str = ""
    """The argument of the constructor that takes it as it is; empty where the lab makes something of it."""
    in_epochs: bool = False
    """Whether it is given in epochs, where the constructor counts steps."""
    default_text: str = ""
    """The default for a reader, where the value alone does not tell."""

    @property
    def has_default(self) -> bool:
        """Whether there is a default that can be given as a value."""
        return self.default is not REQUIRED and self.default is not IN_STEPS

    @property
    def shown_default(self) -> str:
        """The default in a help text."""
        return self.default_text or shown(self.default)

    def read(self, value: Any) -> Any:
        """Return a value of the right type; raise pydantic's ValidationError for any other.

        A number that is too large to compute with raises an OverflowError.
        """
        value = adapter(self.annotation).validate_python(read_text(self.annotation, value))
        _check_size(value, self.default)
        if self.in_epochs and value is not None and value < 0:
            return None
        return value


def _check_size(value: Any, default: Any) -> None:
    """Refuse NaN, infinity and huge numbers, unless the default of the option is one."""
    if isinstance(value, (list, tuple, set)):
        for each in value:
            _check_size(each, default)
    elif isinstance(value, float) and not abs(value) <= LARGEST_FLOAT and value != default:
        raise OverflowError(f"give a finite number of at most {LARGEST_FLOAT:g}")
    elif isinstance(value, int) and abs(value) > LARGEST_INT:
        raise OverflowError("give a number of at most 2^63 - 1")


@cache
def options_of(record: Method) -> dict[str, MethodOption]:
    """Return every option that the lab offers for a method, by key: when to prune, common ones, its own."""
    offered = [*_schedule_options(record), *_common_options(record), *_own_options(record), *_loop_options(record)]
    return {option.key: option for option in offered}


def all_option_keys() -> set[str]:
    """Return the keys of the options of all registered methods."""
    return {key for record in METHODS.values() for key in options_of(record)}


def _schedule_options(record: Method) -> list[MethodOption]:
    if not record.takes_schedule:
        return []
    window: Any = next(field.default for field in fields(Geometric) if field.name == "window")
    start, end = window
    return [
        MethodOption("schedule", Literal["default", "paper", "cubic", "one-shot"], "default", "when to prune"),
        MethodOption(
            "prunings", AtLeastOne | None, None, "number of prunings", default_text="100, or fewer in a short run"
        ),
        MethodOption("start", Share, start, "share of training at which pruning starts"),
        MethodOption("end", Share, end, "share of training at which the last pruning happens"),
    ]


def _common_options(record: Method) -> list[MethodOption]:
    options = [
        MethodOption(
            "scope",
            Literal["global", "layer"],
            _default(record, "scope"),
            "rank weights over the whole network, or in each layer",
            argument="scope",
        ),
        MethodOption(
            "floor",
            Annotated[int | float, Field(ge=0)],
            _default(record, "floor"),
            "number or share of its weights that every layer keeps",
            argument="floor",
        ),
        MethodOption(
            "granularity",
            GranularityText,
            _default(record, "granularity"),
            "unit to prune: weight, kernel, channel, 16x1, 2:4",
            argument="granularity",
        ),
        MethodOption(
            "reduce",
            Literal["mean", "sum", "norm"],
            _default(record, "reduce"),
            "how the scores of the weights of a unit become one",
            argument="reduce",
        ),
        MethodOption(
            "dead_first",
            bool,
            _default(record, "dead_first"),
            "prune weights on no live path from the input to the output first",
            argument="dead_first",
        ),
    ]
    noise, relative_to = _default(record, "noise"), inspect.signature(GradientNoise).parameters["relative_to"].default
    if isinstance(noise, GradientNoise):
        relative_to = noise.relative_to
        noise = noise.scale
    options += [
        MethodOption("noise", NotNegative | None, noise, "scale of the gradient noise, the paper's lambda"),
        MethodOption("relative_to", Literal["gradient", "weight"], relative_to, "what the noise is relative to"),
    ]
    offered = [
        option for option in options if ("noise" if option.key == "relative_to" else option.key) in record.common
    ]
    return [*offered, *_revival_options(record)]


def _revival_options(record: Method) -> list[MethodOption]:
    """Whether pruned weights may come back, and an option for each setting of `Revival`."""
    if "revival" not in record.common:
        return []
    default = _default(record, "revival")
    settings = default if isinstance(default, Revival) else Revival()
    texts = argument_texts(Revival)
    whether = MethodOption("revival", bool, bool(default), "let pruned weights keep learning and come back")
    hints = get_type_hints(Revival)
    return [
        whether,
        *(
            MethodOption(f"revival_{field.name}", hints[field.name], getattr(settings, field.name), texts[field.name])
            for field in fields(Revival)
        ),
    ]


def _loop_options(record: Method) -> list[MethodOption]:
    """Options for what a method needs from the training loop, and the criterion that takes the place of FlipOut's."""
    options = []
    if issubclass(record.cls, FlipOut):
        about = "score weights by this module:function instead"
        options.append(MethodOption("criterion", str | None, None, about, own=True, default_text="flip saliency"))
    if record.needs.batches:
        about = "batches of training data to compute scores from"
        options.append(MethodOption("batches", AtLeastOne, record.needs.batches, about, own=True))
    if share := record.needs.further_epochs:
        about = "epochs after the pruning, as a share of --epochs"
        options.append(
            MethodOption(
                "fine_tune", Annotated[float, Field(ge=0, le=1000)], share, about, own=True, default_text=f"{share:.3g}"
            )
        )
    return options


def _own_options(record: Method) -> list[MethodOption]:
    options = []
    for option in record.options.values():
        annotation, default, text = option.annotation, option.default, ""
        if annotation is Any and default is not None and default is not REQUIRED:
            annotation = type(default)
        in_epochs = InSteps in get_args(annotation)[1:]
        if in_epochs:
            annotation = float | None if accepts_none(annotation) else NotNegative
            if default is not REQUIRED and default:
                default, text = IN_STEPS, f"{default} steps"
        try:
            adapter(annotation)
        except PydanticSchemaGenerationError:
            if default is REQUIRED:
                raise LabError(
                    f"{record.name} needs the argument {option.name} of type {annotation}, which cannot be written as "
                    "text; give it a default value to use the method in the lab"
                ) from None
            continue  # such as a function: to be set in Python only
        options.append(
            MethodOption(
                option.key,
                annotation,
                float(default) if in_epochs and default == 0 else default,
                (option.about.rstrip(".") + (" (in epochs)" if in_epochs else "")).strip(),
                own=True,
                argument=option.name,
                in_epochs=in_epochs,
                default_text=text,
            )
        )
    return options


def _default(record: Method, name: str) -> Any:
    """Return the default of an option that every pruner has: the method's own, or that of `Pruner`."""
    parameter = record.parameters.get(name) or inspect.signature(Pruner.__init__).parameters[name]
    return parameter.default


@cache
def _cached_adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation)


def adapter(annotation: Any) -> TypeAdapter[Any]:
    """Return what validates values of a type."""
    try:
        return _cached_adapter(annotation)
    except TypeError:  # an annotation that cannot be hashed
        return TypeAdapter(annotation)


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
    """Return whether None is a value of a type."""
    return type(None) in alternatives(annotation)


def alternatives(annotation: Any) -> tuple[Any, ...]:
    """Return the types of a union, without their metadata; any other type is the only one."""
    if get_origin(annotation) is Annotated:
        return alternatives(get_args(annotation)[0])
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
