"""The registry of methods: one record for each method, declared next to its class.

A record holds everything that the lab, the command line and the reports know about a method. A class becomes a method
with a decorator:

    @register("flipout", title="FlipOut", about="weights that flip their sign", colour="#0072b2")
    class FlipOut(Pruner): ...

A package of your own adds methods through the entry point group `flipout.methods`:

    [project.entry-points."flipout.methods"]
    my-method = "my_package.pruning:MyMethod"
"""

from __future__ import annotations

import hashlib
import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any, TypeVar, get_args, get_type_hints

from ..pruner import Pruner

ENTRY_POINTS = "flipout.methods"

PALETTE = ("#1b9e77", "#d95f02", "#7570b3", "#e7298a", "#66a61e", "#e6ab02", "#a6761d", "#1f78b4")
"""Colours for methods that do not declare one."""

GIVEN = frozenset({"self", "model", "optimizer", "sparsity", "steps", "schedule", "batches", "loss_fn"})
"""Arguments that a training loop provides, not options of the method."""


@dataclass(frozen=True)
class LoopNeeds:
    """What a method needs from the training loop."""

    penalty: bool = False
    """Add `pruner.penalty()` to the loss of every step."""
    batches: int = 0
    """Pass this many batches (and the loss function) to the constructor, as `batches=` and `loss_fn=`."""
    further_epochs: float = 0.0
    """Train longer than the other methods, by this share of the epochs. The constructor takes the share of the whole
    training that comes after the pruning as `fine_tune=`."""
    restarts_learning_rate: bool = False
    """Start the learning rate schedule over after every pruning."""


@dataclass(frozen=True)
class Option:
    """One option of a method, read from the constructor's signature and the class's docstring."""

    name: str
    annotation: Any
    default: Any
    about: str

    @property
    def key(self) -> str:
        """The name in recipes, grids and on the command line: `lambda` for `lambda_`."""
        return self.name.rstrip("_")


@dataclass(frozen=True)
class Method:
    """The record of a method. Call it like the class to make a pruner."""

    name: str
    cls: type[Pruner]
    title: str
    about: str
    colour: str
    needs: LoopNeeds = field(default_factory=LoopNeeds)

    def __call__(self, *args: Any, **kwargs: Any) -> Pruner:
        return self.cls(*args, **kwargs)

    @cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The parameters of the constructor, with resolved annotations, but for `**options`."""
        hints = get_type_hints(self.cls.__init__, include_extras=True)
        signature = inspect.signature(self.cls.__init__).parameters
        named = {name: p for name, p in signature.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
        return {name: p.replace(annotation=hints.get(name, Any)) for name, p in named.items()}

    @cached_property
    def common(self) -> frozenset[str]:
        """The options of every pruner that this method passes on: `scope`, `floor`, `noise` and so on."""
        hints = get_type_hints(self.cls.__init__, include_extras=True)
        passed_on: set[str] = set()
        for name, parameter in inspect.signature(self.cls.__init__).parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                unpacked = get_args(hints.get(name))  # of Unpack[SomeOptions]; anything else passes on everything
                passed_on |= set(get_type_hints(unpacked[0])) if unpacked else PRUNER_OPTIONS
        return frozenset(passed_on | (PRUNER_OPTIONS & self.parameters.keys()))

    @cached_property
    def options(self) -> dict[str, Option]:
        """The options of this method alone, by name."""
        texts = argument_texts(self.cls)
        return {
            name: Option(name, p.annotation, p.default, texts.get(name, ""))
            for name, p in self.parameters.items()
            if name not in GIVEN | PRUNER_OPTIONS and not (name == "fine_tune" and self.needs.further_epochs)
        }

    @property
    def takes_schedule(self) -> bool:
        """Whether it prunes in steps, under a schedule that can be chosen."""
        return "schedule" in self.parameters

    @property
    def needs_sparsity(self) -> bool:
        """Whether a sparsity must be given."""
        sparsity = self.parameters.get("sparsity")
        return sparsity is not None and type(None) not in get_args(sparsity.annotation)


PRUNER_OPTIONS = frozenset(inspect.signature(Pruner.__init__).parameters) - GIVEN - {"criterion", "statistics"}


def argument_texts(cls: type) -> dict[str, str]:
    """The one-line texts of the `Args:` section of a class's docstring, by argument."""
    _, _, section = (inspect.getdoc(cls) or "").partition("\nArgs:\n")
    found: dict[str, str] = {}
    for line in section.splitlines():
        if match := re.match(r"    (\w+): (.*)", line):
            name = match[1]
            found[name] = match[2]
        elif found and line.startswith("        "):
            found[name] += " " + line.strip()
        else:
            break
    return found


class Registry(Mapping[str, Method]):
    """The methods by name: those of this package, and those that installed packages declare as entry points."""

    def __init__(self) -> None:
        self._records: dict[str, Method] = {}
        self._entry_points_loaded = False

    def add(self, record: Method) -> None:
        """Add a record. A name that is taken by another class is an error."""
        if (known := self._records.get(record.name)) is not None and known.cls is not record.cls:
            raise ValueError(
                f"the method name {record.name!r} is taken by {known.cls.__qualname__}; choose another name"
            )
        self._records[record.name] = record

    def record_of(self, cls: type[Pruner], name: str) -> Method:
        """The record of a class: the declared one, or one made from its name and docstring."""
        declared = next((record for record in self._records.values() if record.cls is cls), None)
        if declared is not None:
            return Method(name, cls, declared.title, declared.about, declared.colour, declared.needs)
        about = (inspect.getdoc(cls) or "").partition("\n")[0].rstrip(".") if cls.__doc__ else ""
        digest = hashlib.sha256(name.encode()).digest()
        return Method(name, cls, cls.__name__, about, PALETTE[digest[0] % len(PALETTE)])

    def __getitem__(self, name: str) -> Method:
        if name not in self._records:
            self._load_entry_points()
        return self._records[name]

    def __iter__(self) -> Iterator[str]:
        self._load_entry_points()
        return iter(self._records)

    def __len__(self) -> int:
        self._load_entry_points()
        return len(self._records)

    def _load_entry_points(self) -> None:
        if self._entry_points_loaded:
            return
        self._entry_points_loaded = True
        for point in entry_points(group=ENTRY_POINTS):
            try:
                cls = point.load()  # which registers it too if it is decorated
            except Exception as error:  # of any kind: one broken package must not take the other methods away
                warnings.warn(
                    f"the method {point.name!r} of an installed package cannot be imported: {error}", stacklevel=3
                )
                continue
            if point.name not in self._records:
                self.add(self.record_of(cls, point.name))


METHODS = Registry()
"""Every method by name, such as `METHODS["flipout"]`."""

PrunerClass = TypeVar("PrunerClass", bound=type[Pruner])


def register(
    name: str, *, title: str, about: str, colour: str | None = None, needs: LoopNeeds | None = None
) -> Callable[[PrunerClass], PrunerClass]:
    """Declare a class as a method.

    Args:
        name: the name in `flipout methods`, recipes and grids.
        title: the name in reports.
        about: what it prunes, in one line.
        colour: its colour in figures; one of a palette by default.
        needs: what it needs from the training loop.
    """

    def declare(cls: PrunerClass) -> PrunerClass:
        default = PALETTE[len(METHODS._records) % len(PALETTE)]
        METHODS.add(Method(name, cls, title, about, colour or default, needs or LoopNeeds()))
        return cls

    return declare
