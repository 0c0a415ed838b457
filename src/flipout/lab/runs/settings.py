"""Everything that makes a run what it is: a frozen model, read from a recipe and overridden on the command line."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, model_validator

from flipout import METHODS

from ..data import DATA
from ..errors import LabError, unknown
from ..models import MODELS

# Which method takes which option of its own.
COMMON = {"scope", "floor", "noise", "relative_to"}
SCHEDULED = {"schedule", "prunings", "start", "end"}
METHOD_OPTIONS: dict[str, set[str]] = {
    "flipout": {"p", "criterion"} | SCHEDULED | COMMON,
    "magnitude": SCHEDULED | COMMON,
    "random": SCHEDULED | COMMON,
    "magnitude-uncertainty": {"lambda", "horizon"} | SCHEDULED | COMMON,
    "snip": {"rounds", "snip_batches"} | COMMON,
    "hoyer-square": {"lambda", "threshold", "fine_tune"} | COMMON,
    "deep-r": {"l1", "temperature", "scope", "floor"},
    "lottery": {"rounds", "rewind_to"} | COMMON,
    "dense": {"noise", "relative_to"},
    "keep-zeros": {"noise", "relative_to"},
}


class Settings(BaseModel):
    """The settings of a run. Options of a method are None where its own default is meant."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    data: str = Field("", description="data set, image folder, or module:function (else the model's usual one)")
    model: str = Field("mlp", description="network, torchvision:NAME, timm:NAME, or module:function")
    method: str = Field("flipout", description="what prunes; see `flipout methods`")
    sparsity: float | None = Field(0.95, ge=0, lt=1, description="share of weights that are gone at the end")
    epochs: int = Field(30, ge=1, description="passes over the training data")
    seed: int = Field(0, ge=0, description="of everything that is random")
    width: float = Field(1.0, gt=0, description="scales the number of channels of the network")
    image_size: int | None = Field(None, ge=8, description="side that photographs are scaled to")
    init: str | None = Field(None, description="start from these weights (safetensors)")
    validate_: bool = Field(False, alias="validate", description="hold out training data; do not touch the test set")

    optimizer: Literal["sgd", "adam", "adamw"] = Field("sgd", description="sgd, adam or adamw")
    learning_rate: float = Field(0.1, gt=0, description="at the start")
    momentum: float = Field(0.9, ge=0, lt=1, description="of SGD; the first beta of Adam")
    weight_decay: float = Field(5e-4, ge=0, description="pull of all weights towards zero")
    batch_size: int = Field(128, ge=1, description="images in a step")
    milestones: tuple[int, ...] = Field((150, 250), description="epochs, of milestones-of, at which the rate decays")
    milestones_of: int = Field(350, ge=1, description="the epochs that milestones are counted in")
    decay: float = Field(0.1, gt=0, le=1, description="what the learning rate is multiplied with at a milestone")
    augment: bool = Field(True, description="crop and mirror colour images")
    amp: bool = Field(False, description="half precision; needs a GPU")
    device: str = Field("cpu", description="cpu, cuda, cuda:1, mps")
    threads: int | None = Field(None, ge=1, description="CPU threads (else all)")
    aim: bool = Field(False, description="count over- and under-shoots of zero (the aim test)")
    compile: Literal["auto", "yes", "no"] = Field("auto", description="compile the work around a step: auto, yes or no")

    schedule: Literal["default", "paper", "cubic", "one-shot"] | None = Field(
        None, description="when to prune: default, paper, cubic or one-shot"
    )
    prunings: int | None = Field(None, ge=1, description="how many times to prune")
    start: float | None = Field(None, ge=0, le=1, description="share of training at which pruning starts")
    end: float | None = Field(None, ge=0, le=1, description="share of training at which the last pruning comes")
    scope: Literal["global", "layer"] | None = Field(None, description="rank over the network, or in each layer")
    floor: int | float | None = Field(None, ge=0, description="weights, or share of them, that every layer keeps")
    noise: float | None = Field(None, ge=0, description="scale of the gradient noise, the paper's lambda")
    relative_to: Literal["gradient", "weight"] | None = Field(None, description="what the noise is relative to")
    p: float | None = Field(None, ge=0, description="flipout: power of the magnitude")
    criterion: str | None = Field(None, description="flipout: score by this module:function instead")
    lambda_: float | None = Field(None, alias="lambda", ge=0, description="hoyer-square, magnitude-uncertainty")
    threshold: float | None = Field(None, ge=0, description="hoyer-square: what is pruned without a sparsity")
    fine_tune: float | None = Field(None, ge=0, description="hoyer-square: further epochs, as a share of epochs")
    horizon: int | None = Field(None, ge=1, description="magnitude-uncertainty: how many recent values count")
    rounds: int | None = Field(None, ge=1, description="snip: prunings; lottery: rounds")
    snip_batches: int | None = Field(None, ge=1, description="snip: batches to look at")
    rewind_to: float | None = Field(None, description="lottery: epoch to rewind to; negative: do not rewind")
    l1: float | None = Field(None, ge=0, description="deep-r: pull towards zero")
    temperature: float | None = Field(None, ge=0, description="deep-r: of its noise")

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: dict[str, Any]) -> dict[str, Any]:
        if not values.get("data"):
            info = MODELS.get(values.get("model", "mlp"))
            values = {**values, "data": info.data if info else "digits"}
        return values

    @model_validator(mode="after")
    def _fits_together(self, info: ValidationInfo) -> Settings:
        if self.method not in METHODS:
            raise unknown("method", self.method, METHODS)
        if ":" not in self.model and self.model not in MODELS:
            raise unknown("model", self.model, [*MODELS, "torchvision:NAME", "timm:NAME", "module:function"])
        here = self.data in DATA or ":" in self.data or Path(self.data).is_dir()
        if not here and not (info.context or {}).get("kept"):
            raise unknown("data set", self.data, [*DATA, "a folder", "module:function"])
        for option in set().union(*METHOD_OPTIONS.values()) - METHOD_OPTIONS[self.method] - {"schedule"}:
            if getattr(self, "lambda_" if option == "lambda" else option) is not None:
                taken = ", ".join(sorted(_flag(name) for name in METHOD_OPTIONS[self.method]))
                raise LabError(f"{self.method} takes no {_flag(option)}; it takes {taken}")
        if self.sparsity is None and self.method != "hoyer-square":
            raise LabError(f"{self.method} needs a sparsity; only hoyer-square can do without one")
        return self

    def described(self) -> dict[str, Any]:
        """Plain data, by the names that recipes and the command line use."""
        return self.model_dump(mode="json", by_alias=True)

    def told_briefly(self) -> dict[str, Any]:
        """The same, without what is the default anyway."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)

    @property
    def total_epochs(self) -> int:
        """All epochs, the fine-tuning of Hoyer-Square included: 150 more for each 350 unless said otherwise."""
        share = 150 / 350 if self.fine_tune is None else self.fine_tune
        return self.epochs + (round(self.epochs * share) if self.method == "hoyer-square" else 0)

    def folder_name(self) -> str:
        """A readable name of a run, and a hash of all its settings."""
        digest = hashlib.sha256(json.dumps(self.described(), sort_keys=True).encode()).hexdigest()[:8]
        parts = [Path(self.data).name, self.model, self.method, f"{self.sparsity}", f"seed{self.seed}", digest]
        return "-".join(part.replace(":", ".").replace("/", ".") for part in parts)


def _flag(option: str) -> str:
    return "--" + option.rstrip("_").replace("_", "-")


def fields() -> dict[str, Any]:
    """Every setting by the name that recipes and the command line use."""
    return {info.alias or name: info for name, info in Settings.model_fields.items()}


def read_recipe(name: str) -> dict[str, Any]:
    """A recipe that comes with the lab, by name, or a TOML file."""
    shipped = {path.name.removesuffix(".toml"): path for path in resources.files(f"{__package__}.recipes").iterdir()}
    if name in shipped:
        text = shipped[name].read_text(encoding="utf-8")
    elif Path(name).is_file():
        text = Path(name).read_text(encoding="utf-8")
    else:
        raise unknown("recipe", name, [*(n for n in shipped if not n.startswith("__")), "a TOML file"])
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise LabError(f"the recipe {name} is not TOML: {error}") from error
    check_keys(values, f"setting in the recipe {name}:")
    return values


def check_keys(values: Mapping[str, Any], what: str) -> None:
    """Refuses a key that is no setting, and suggests the nearest."""
    for key in values:
        if key not in fields():
            raise unknown(what, key, fields())


def make_settings(recipe: str = "default", **overrides: Any) -> Settings:
    """A recipe, overridden; what is wrong with a value is said in a sentence."""
    check_keys(overrides, "setting")
    values = {**read_recipe(recipe), **overrides}
    method = values.get("method", "flipout")
    # A recipe speaks of when to prune to those that prune in steps; who asks for it of another is told.
    if "schedule" not in overrides and method in METHOD_OPTIONS and "schedule" not in METHOD_OPTIONS[method]:
        values.pop("schedule", None)
    elif values.get("schedule") is not None and "schedule" not in METHOD_OPTIONS.get(method, {"schedule"}):
        raise LabError(f"{method} takes no --schedule")
    return validated(values)


def validated(values: Mapping[str, Any], *, kept: bool = False) -> Settings:
    """Settings from plain data. Those of results that were kept may name data that is not on this machine."""
    try:
        return Settings.model_validate(values, context={"kept": kept})
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            key = ".".join(str(part) for part in problem["loc"])
            lines.append(f"{_flag(key)} is {problem['input']!r}: {problem['msg'].lower()}")
        raise LabError("; ".join(lines)) from None
