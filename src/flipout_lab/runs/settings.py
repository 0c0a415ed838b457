"""The settings of a run: a frozen model, read from a recipe and overridden on the command line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from flipout import Method

from ..data import DATA, find_image_folder
from ..errors import LabError, unknown
from ..files import is_file, read_toml
from ..models import MODELS
from .method_options import (
    LARGEST_FLOAT,
    LARGEST_INT,
    NONE,
    REQUIRED,
    MethodOption,
    accepts_none,
    all_option_keys,
    find_method,
    find_method_or_none,
    options_of,
    read_text,
)

RESERVED = frozenset({"help", "mlflow", "name", "out", "quiet", "recipe", "tensorboard", "variants", "wandb"})
"""Keys of grids and options of commands that are not settings."""

LONGEST = 10**9
"""The most epochs, and images of a batch, that a run can have."""

MOST_THREADS = 1024
"""More threads than this crash the process."""

LONGEST_NAME = 255
"""The bytes that the name of a folder may have on common file systems."""

Panel = Literal["Data", "Network", "Training", "Pruning", "Output"]
"""The subjects that settings are grouped by."""


def _setting(panel: Panel, default: Any, about: str, **constraints: Any) -> Any:
    return Field(default, description=about, json_schema_extra={"panel": panel}, **constraints)


class Settings(BaseModel):
    """The settings of a run. The options of its method are extra keys, which the record of the method declares.

    Read an option with `option(key)`. An option that is given with the default value of the method is the same as one
    that is not given, so that equal runs have equal settings.
    """

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True, allow_inf_nan=False)

    data: str = _setting("Data", "", "data set, image folder, or module:function (default: the model's usual data)")
    image_size: int | None = _setting("Data", None, "side in pixels that photographs are scaled to", ge=8, le=10_000)
    augment: bool = _setting("Data", True, "crop and mirror colour images")
    validate_: bool = _setting(
        "Data", False, "hold out training data to measure on, and do not use the test set", alias="validate"
    )

    model: str = _setting(
        "Network", "mlp", "network (`flipout models`), torchvision:NAME, timm:NAME or module:function"
    )
    width: float = _setting("Network", 1.0, "factor for the number of channels", gt=0, le=1000)
    init: str | None = _setting("Network", None, "safetensors file with the initial weights")

    epochs: int = _setting("Training", 30, "passes over the training data", ge=1, le=LONGEST)
    batch_size: int = _setting("Training", 128, "images per step", ge=1, le=LONGEST)
    optimizer: Literal["sgd", "adam", "adamw"] = _setting("Training", "sgd", "optimizer")
    learning_rate: float = _setting("Training", 0.1, "initial learning rate", gt=0, le=LARGEST_FLOAT)
    momentum: float = _setting("Training", 0.9, "momentum of SGD, or the first beta of Adam", ge=0, lt=1)
    weight_decay: float = _setting("Training", 5e-4, "weight decay", ge=0, le=LARGEST_FLOAT)
    milestones: tuple[Annotated[int, Field(ge=0, le=LONGEST)], ...] = _setting(
        "Training", (150, 250), "epochs at which the learning rate decays, counted in --milestones-of epochs"
    )
    milestones_of: int = _setting(
        "Training", 350, "the milestones scale from this many epochs to --epochs", ge=1, le=LONGEST
    )
    decay: float = _setting("Training", 0.1, "factor for the learning rate at a milestone", gt=0, le=1)
    seed: int = _setting("Training", 0, "seed of everything random", ge=0, le=LARGEST_INT)
    device: str = _setting("Training", "cpu", "cpu, cuda, cuda:1 or mps")
    amp: bool = _setting("Training", False, "train in half precision; needs a GPU")
    threads: int | None = _setting("Training", None, "CPU threads (default: all)", ge=1, le=MOST_THREADS)

    method: str = _setting("Pruning", "flipout", "pruning method (`flipout methods`), or module:Class")
    sparsity: float | None = _setting("Pruning", 0.95, "share of the weights that are pruned in the end", ge=0, lt=1)
    shrink: bool = _setting("Pruning", True, "remove channels that nothing reads while training, where that pays")
    compile: Literal["auto", "yes", "no"] = _setting("Pruning", "auto", "run the work of the pruner in torch.compile")

    aim: bool = _setting("Output", False, "count over- and under-shoots of zero (the aim test) into result.json")

    @model_validator(mode="before")
    @classmethod
    def _read_plain_data(cls, values: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Fill in the data set, read "none" and lists from text, and validate the options of the method.

        Null stands for "not given", except in a setting that can be None.
        """
        known = {key: field for name, field in cls.model_fields.items() for key in (name, field.alias or name)}
        base, options = dict[str, Any](), dict[str, Any]()
        for key, value in values.items():
            if key not in known:
                options[key] = value
            elif value is not None or accepts_none(known[key].annotation):
                base[key] = read_text(known[key].annotation, value)
        if not base.get("data"):
            usual = MODELS.get(base.get("model", "mlp"))
            base["data"] = usual.data if usual else "digits"
        name = base.get("method", cls.model_fields["method"].default)
        if not isinstance(name, str):
            return base  # an error, which the validation of the field reports
        return {**base, **_read_options(cls, name, options, stored=_is_stored(info))}

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> Settings:
        if ":" not in self.model and self.model not in MODELS:
            raise unknown("model", self.model, [*MODELS, "torchvision:NAME", "timm:NAME", "module:function"])
        if _is_stored(info):
            return self
        if self.data not in DATA and ":" not in self.data and find_image_folder(self.data) is None:
            raise unknown("data set", self.data, [*DATA, "a folder", "module:function"])
        if self.sparsity is None and self.record.needs_sparsity:
            raise LabError(f"{self.method} needs a sparsity: give --sparsity a number")
        return self

    @property
    def record(self) -> Method:
        """The record of the method."""
        return find_method(self.method)

    @property
    def method_options(self) -> dict[str, MethodOption]:
        """The options that the method takes, by key; empty where the method cannot be imported."""
        record = find_method_or_none(self.method)
        return {} if record is None else options_of(record)

    @property
    def given_options(self) -> dict[str, Any]:
        """The options of the method that are not at their default."""
        return dict(self.model_extra or {})

    def option(self, key: str) -> Any:
        """Return the value of an option of the method: the given one, or else the default of the method.

        None where the method has no such option.
        """
        if key in self.given_options:
            return self.given_options[key]
        offered = self.method_options.get(key)
        return offered.default if offered is not None and offered.has_default else None

    @property
    def total_epochs(self) -> int:
        """All epochs, including those that the method trains after its pruning (`--fine-tune`)."""
        record = find_method_or_none(self.method)
        if record is None or not record.needs.further_epochs:
            return self.epochs
        share: float = self.option("fine_tune")
        return self.epochs + round(self.epochs * share)

    def base(self) -> dict[str, Any]:
        """Return all settings but the options of the method, as plain data."""
        return self.model_dump(mode="json", by_alias=True, include=set(type(self).model_fields))

    def as_dict(self) -> dict[str, Any]:
        """Return all settings with their values as plain data, under the keys of recipes and the command line."""
        defaults = {key: option.default for key, option in self.method_options.items() if option.has_default}
        return {**self.base(), **to_jsonable_python(defaults), **self._plain_options()}

    def non_defaults(self) -> dict[str, Any]:
        """Return the settings that are not at their default, as plain data: what identifies a run."""
        base = self.model_dump(mode="json", by_alias=True, include=set(type(self).model_fields), exclude_defaults=True)
        return {**base, **self._plain_options()}

    def _plain_options(self) -> dict[str, Any]:
        given = {key: NONE if value is None else value for key, value in self.given_options.items()}
        plain: dict[str, Any] = to_jsonable_python(given)
        return plain

    def folder_name(self) -> str:
        """Return a readable name of a run, with a hash of the settings that are not at their default.

        A setting that a later version adds does not change the name.
        """
        digest = hashlib.sha256(json.dumps(self.non_defaults(), sort_keys=True).encode()).hexdigest()[:8]
        parts = [Path(self.data).name, self.model, self.method, f"{self.sparsity}", f"seed{self.seed}"]
        readable = "-".join(part.replace(":", ".").replace("/", ".") for part in parts)
        cut = readable.encode()[: LONGEST_NAME - len(digest) - 1].decode(errors="ignore")
        return f"{cut}-{digest}"


def _is_stored(info: ValidationInfo) -> bool:
    return bool((info.context or {}).get("stored"))


def _read_options(cls: type[Settings], method: str, given: Mapping[str, Any], *, stored: bool) -> dict[str, Any]:
    """Validate the options of a method, and leave out those that are not given or at their default.

    Stored settings may have options that the method no longer takes, or a method that cannot be imported: what they
    say is kept as it is.
    """
    record = find_method_or_none(method) if stored else find_method(method)
    offered = {} if record is None else options_for(record, cls)
    values: dict[str, Any] = {}
    for key, value in given.items():
        if value is None:
            continue
        if key in offered:
            values[key] = _read_option(offered[key], value)
        elif stored:
            values[key] = value
        else:
            raise _not_an_option(method, key, offered)
    for key, option in offered.items():
        if option.default is REQUIRED and key not in values and not stored:
            raise LabError(f"{method} needs {flag(key)}: {option.about or 'it has no default value'}")
    # A criterion of the user's own has its own default for p.
    kept = {"p"} if "criterion" in values else set()
    ordered = [*(key for key in offered if key in values), *(key for key in values if key not in offered)]
    chosen = {
        key: values[key]
        for key in ordered
        if key in kept or key not in offered or not _is_default(offered[key], values[key])
    }
    if not stored:
        check_combination(method, chosen)
    return chosen


def _read_option(option: MethodOption, value: Any) -> Any:
    try:
        return option.read(value)
    except OverflowError as error:
        raise LabError(f"{flag(option.key)} is {value!r}: {error}") from None
    except ValidationError as error:
        raise LabError(_problems(error, option.key)) from None


def _is_default(option: MethodOption, value: Any) -> bool:
    return option.has_default and type(value) in (type(option.default), int, float) and bool(value == option.default)


def check_combination(method: str, options: Mapping[str, Any]) -> None:
    """Refuse options that contradict each other."""
    if options.get("schedule") == "paper" and options.keys() & {"prunings", "start", "end"}:
        raise LabError("the paper's schedule has no --prunings, --start and --end; use --schedule default")
    if own := [key for key in options if key.startswith("revival_")]:
        whether = options.get("revival", options_of(find_method(method))["revival"].default)
        if not whether:
            raise LabError(f"{method} prunes for good here; give --revival along with {flag(own[0])}")
    if "relative_to" in options and options.get("noise") is None:
        noise = options_of(find_method(method)).get("noise")
        if noise is not None and noise.default is None:
            raise LabError(f"{method} adds no noise by default; give --noise along with --relative-to")


def _not_an_option(method: str, key: str, offered: Mapping[str, MethodOption]) -> LabError:
    if key not in all_option_keys():
        return unknown("setting", key, [*fields(), *offered])
    if key == "schedule" and not offered:
        return LabError(f"{method} takes no --schedule")
    taken = ", ".join(sorted(map(flag, offered))) or "none of its own"
    return LabError(f"{method} takes no {flag(key)}; it takes {taken}")


def flag(key: str) -> str:
    """Return the command-line option of a setting."""
    return "--" + key.rstrip("_").replace("_", "-")


def options_for(record: Method, cls: type[Settings] = Settings) -> dict[str, MethodOption]:
    """Return the options of a method. One that has the name of a setting is an error."""
    options, keys = options_of(record), {field.alias or name for name, field in cls.model_fields.items()}
    if clash := sorted(options.keys() & (keys | RESERVED)):
        raise LabError(f"{record.name} has an option {clash[0]!r}, which the lab uses itself; rename the option")
    return options


def fields() -> dict[str, FieldInfo]:
    """Return the settings that do not depend on the method, under the keys of recipes and the command line."""
    return {field.alias or name: field for name, field in Settings.model_fields.items()}


def validated(values: Mapping[str, Any], *, stored: bool = False) -> Settings:
    """Return settings from plain data.

    Stored settings of earlier runs may name data or a method that is not on this machine.
    """
    try:
        return Settings.model_validate(values, context={"stored": stored})
    except ValidationError as error:
        raise LabError(_problems(error)) from None


def _problems(error: ValidationError, key: str = "") -> str:
    lines: dict[str, str] = {}
    for problem in error.errors():
        name = flag(key or ".".join(str(part) for part in problem["loc"][:1]))
        lines.setdefault(name, f"{name} is {problem['input']!r}: {problem['msg'].lower()}")
    return "; ".join(lines.values())


def make_settings(recipe: str = "default", **overrides: Any) -> Settings:
    """Return the settings of a recipe with some of them overridden; an invalid value is an error that names it."""
    chosen = overrides.get("method")
    values = {**read_recipe(recipe, [] if chosen is None else [str(chosen)]), **overrides}
    method = str(values.get("method") or fields()["method"].default)
    check_keys(overrides, "setting", [method])
    record = find_method(method)
    if not record.takes_schedule:
        # A recipe says when to prune, for the methods that prune under a schedule. Asking another one for it is an
        # error.
        if overrides.get("schedule") is not None:
            raise LabError(f"{method} takes no {flag('schedule')}: it decides by itself when to prune")
        values.pop("schedule", None)
    check_combination(method, {key: value for key, value in values.items() if value is not None})
    return validated(values)


def read_recipe(name: str, methods: Iterable[str] = ()) -> dict[str, Any]:
    """Return the content of a recipe: the name of one that comes with the lab, or a TOML file.

    It may have options of the method that it names, of `methods`, and of all registered methods.
    """
    shipped = {
        path.name.removesuffix(".toml"): path
        for path in (resources.files(__package__) / "recipes").iterdir()
        if path.name.endswith(".toml")
    }
    if not isinstance(name, str):  # from a grid file
        raise LabError(f"recipe is {name!r}; give the name of a recipe in quotes: {', '.join(shipped)}, or a TOML file")
    if name not in shipped and not is_file(name):
        raise unknown("recipe", name, [*shipped, "a TOML file"])
    values = read_toml(shipped.get(name, Path(name)), f"the recipe {name}")
    named = [str(values["method"])] if "method" in values else []
    check_keys(values, f"setting in the recipe {name}:", [*named, *methods])
    return values


def check_keys(values: Mapping[str, Any], what: str, methods: Iterable[str] = ()) -> None:
    """Refuse a key that is neither a setting nor an option of a method, and suggest the nearest.

    `methods` are names of methods whose options are known besides those of all registered ones.
    """
    if not values.keys() - fields().keys():
        return
    known = {*fields(), *all_option_keys()}
    if values.keys() <= known:
        return
    known.update(key for name in methods for key in options_of(find_method(name)))
    for key in values:
        if key not in known:
            raise unknown(what, key, sorted(known))
