"""The settings of a run: a frozen model, read from a recipe and overridden on the command line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, create_model, model_validator
from pydantic.fields import FieldInfo

from flipout import Method

from ..data import DATA, find_image_folder
from ..errors import LabError, unknown
from ..files import is_file, read_toml
from ..models import MODELS
from .method_options import (
    LARGEST_FLOAT,
    LARGEST_INT,
    NONE,
    SECOND_CHANCES,
    MethodOption,
    accepts_none,
    all_option_keys,
    find_method,
    find_method_or_none,
    options_of,
    read_text,
)

OPTION = "option_"
"""Of the names of fields that are options of a method, which may have any name."""

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
    """The settings of a run, without the options of its method. Those of a method are fields of a subclass, which
    `make_settings` chooses; read one with `option(key)`. An option that is given with the default value of the method
    is the same as one that is not given, so that equal runs have equal settings.
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
    sparse_kernels: bool = _setting(
        "Pruning", True, "compute layers with their kept weights only where that is faster (CPU)"
    )
    compile: Literal["auto", "yes", "no"] = _setting("Pruning", "auto", "run the work of the pruner in torch.compile")

    aim: bool = _setting("Output", False, "count over- and under-shoots of zero (the aim test) into result.json")

    @model_validator(mode="before")
    @classmethod
    def _read_plain_data(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Fill in the data set, and read "none" and lists from text.

        Null stands for "not given", except in a setting that can be None.
        """
        read = dict[str, Any]()
        for key, value in values.items():
            setting = Settings.model_fields.get(key) or fields().get(key)
            if setting is not None and (value is not None or accepts_none(setting.annotation)):
                read[key] = read_text(setting.annotation, value)
            elif setting is None and value is not None:
                read[key] = value
        if not read.get("data"):
            usual = MODELS.get(read.get("model", "mlp"))
            read["data"] = usual.data if usual else "digits"
        if "criterion" in read and OPTION + "p" in cls.model_fields:
            read.setdefault("p", NONE)  # a criterion of the user has its own default
        return read

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> Settings:
        if ":" not in self.model and self.model not in MODELS:
            raise unknown("model", self.model, [*MODELS, "torchvision:NAME", "timm:NAME", "module:function"])
        if (info.context or {}).get("stored"):
            return self
        if self.data not in DATA and ":" not in self.data and find_image_folder(self.data) is None:
            raise unknown("data set", self.data, [*DATA, "a folder", "module:function"])
        if self.sparsity is None and self.record.needs_sparsity:
            raise LabError(f"{self.method} needs a sparsity: give --sparsity a number")
        given = self.given_options
        if given.get("schedule") == "paper" and given.keys() & {"prunings", "start", "end"}:
            raise LabError("the paper's schedule has no --prunings, --start and --end; use --schedule default")
        own = [key for key in given if key.startswith(f"{SECOND_CHANCES}_")]
        if own and not self.option(SECOND_CHANCES):
            raise LabError(
                f"{self.method} has no second chances; give {flag(SECOND_CHANCES)} along with {flag(own[0])}"
            )
        if "relative_to" in given and self.option("noise") is None:
            raise LabError(f"{self.method} adds no noise by default; give --noise along with --relative-to")
        return self

    @property
    def record(self) -> Method:
        return find_method(self.method)

    @property
    def method_options(self) -> dict[str, MethodOption]:
        """The options that the method takes, by key; empty where the method cannot be imported."""
        record = find_method_or_none(self.method)
        return {} if record is None else options_of(record)

    @property
    def given_options(self) -> dict[str, Any]:
        """The options of the method that are not at their default, and what only the run of an earlier version has."""
        options = {key: field for key, field in fields(type(self)).items() if OPTION + key in type(self).model_fields}
        given = {key: self.option(key) for key, field in options.items() if self.option(key) != field.default}
        return given | (self.model_extra or {})

    def option(self, key: str) -> Any:
        """Return the value of an option of the method; None where the method has no such option."""
        return getattr(self, OPTION + key, (self.model_extra or {}).get(key))

    @property
    def total_epochs(self) -> int:
        """All epochs, including those that the method trains after its pruning (`--fine-tune`)."""
        return self.epochs + round(self.epochs * (self.option("fine_tune") or 0))

    def base(self) -> dict[str, Any]:
        """Return all settings but the options of the method, as plain data."""
        return {key: value for key, value in self.as_dict().items() if key in fields()}

    def as_dict(self) -> dict[str, Any]:
        """Return all settings with their values as plain data, under the keys of recipes and the command line."""
        return self._plain_data(exclude_defaults=False)

    def non_defaults(self) -> dict[str, Any]:
        """Return the settings that are not at their default, as plain data: what identifies a run."""
        return self._plain_data(exclude_defaults=True)

    def _plain_data(self, *, exclude_defaults: bool) -> dict[str, Any]:
        plain = self.model_dump(mode="json", by_alias=True, exclude_defaults=exclude_defaults)
        options = self.method_options
        return {key: NONE if value is None and key in options else value for key, value in plain.items()}

    def folder_name(self) -> str:
        """Return a readable name of a run, with a hash of the settings that are not at their default.

        A setting that a later version adds does not change the name.
        """
        digest = hashlib.sha256(json.dumps(self.non_defaults(), sort_keys=True).encode()).hexdigest()[:8]
        parts = [Path(self.data).name, self.model, self.method, f"{self.sparsity}", f"seed{self.seed}"]
        readable = "-".join(part.replace(":", ".").replace("/", ".") for part in parts)
        cut = readable.encode()[: LONGEST_NAME - len(digest) - 1].decode(errors="ignore")
        return f"{cut}-{digest}"


@cache
def settings_class(record: Method | None, base: type[Settings] = Settings) -> type[Settings]:
    """Return the settings with a field for every option of a method. An option with the name of a setting is an error.

    Without a method, which cannot be imported, what is stored of its options is kept as it is.
    """
    if record is None:
        return base
    options = options_of(record)
    if clash := sorted(options.keys() & (fields().keys() | RESERVED)):
        raise LabError(f"{record.name} has an option {clash[0]!r}, which the lab uses itself; rename the option")
    made: dict[str, Any] = {OPTION + key: option.field() for key, option in options.items()}
    return create_model(f"Settings of {record.name}", __base__=base, **made)


def flag(key: str) -> str:
    return "--" + key.rstrip("_").replace("_", "-")


def fields(cls: type[Settings] = Settings) -> dict[str, FieldInfo]:
    """Return the settings of a class, under the keys of recipes and the command line."""
    return {field.alias or name: field for name, field in cls.model_fields.items()}


def validated(values: Mapping[str, Any], *, stored: bool = False) -> Settings:
    """Return settings from plain data.

    Stored settings of earlier runs may name data, options or a method that is not on this machine.
    """
    name = str(values.get("method") or fields()["method"].default)
    cls = settings_class(find_method_or_none(name) if stored else find_method(name))
    if not stored:
        for key in values:
            if values[key] is not None and key not in fields(cls) and key not in cls.model_fields:
                raise not_taken(key, name)
    try:
        return cls.model_validate(dict(values), context={"stored": stored})
    except ValidationError as error:
        raise LabError(_problems(error, name)) from None


def not_taken(key: str, method: str) -> LabError:
    """The error for a key that is not a setting: an option that another method takes, or a typing error."""
    taken = options_of(find_method(method))
    if key not in all_option_keys():
        return unknown("setting", key, [*fields(), *taken, *sorted(all_option_keys())])
    return LabError(f"{method} takes no {flag(key)}; it takes {', '.join(sorted(map(flag, taken))) or 'no options'}")


def _problems(error: ValidationError, method: str) -> str:
    lines: dict[str, str] = {}
    for problem in error.errors():
        name = flag(str(problem["loc"][0]))
        text = problem["msg"].lower().removeprefix("value error, ")
        what = f"{method} needs {name}" if problem["type"] == "missing" else f"{name} is {problem['input']!r}: {text}"
        lines.setdefault(name, what)
    return "; ".join(lines.values())


def make_settings(recipe: str = "default", **overrides: Any) -> Settings:
    """Return the settings of a recipe with some of them overridden; an invalid value is an error that names it.

    Options of the recipe that a method of the overrides does not take are left out.

        >>> settings = flipout_lab.make_settings("paper", model="lenet-300-100", sparsity=0.99)
        >>> settings.epochs, settings.method
        (350, 'flipout-paper')
    """
    values, method = chosen_recipe(recipe, overrides.get("method"))
    if overrides.get("method") is not None:
        taken = {*fields(), *options_of(find_method(method))}
        values = {key: value for key, value in values.items() if key in taken}
    return validated({**values, **overrides})


def chosen_recipe(name: str, method: str | None = None) -> tuple[dict[str, Any], str]:
    """Return the content of a recipe, and the name of the method: the given one, or else that of the recipe.

    A recipe is one that comes with the lab, or a TOML file. It may have options of all registered methods.
    """
    folder = resources.files(__package__) / "recipes"
    shipped = {path.name.removesuffix(".toml"): path for path in folder.iterdir()}
    if not isinstance(name, str):  # from a grid file
        raise LabError(f"recipe is {name!r}; give the name of a recipe in quotes: {', '.join(shipped)}, or a TOML file")
    if name not in shipped and not is_file(name):
        raise unknown("recipe", name, [*shipped, "a TOML file"])
    values = read_toml(shipped.get(name, Path(name)), f"the recipe {name}")
    method = str(method or values.get("method") or fields()["method"].default)
    known = {*fields(), *all_option_keys(), *options_of(find_method(method))}
    for key in values:
        if key not in known:
            raise unknown(f"setting in the recipe {name}:", key, sorted(known))
    return values, method
