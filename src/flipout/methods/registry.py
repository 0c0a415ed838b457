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
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any, TypeVar, get_args, get_type_hints

from ..pruner import Pruner

ENTRY_POINTS = "flipout.methods"

PALETTE = ("#1b9e77", "#d95f02", "#7570b3", "#e7298a", "#66a61e", "#e6ab02", "#a6761d", "#1f78b4")
"""Colours for methods that do not declare one."""

GIVEN = frozenset({"self", "model", "optimizer", "sparsity", "steps", "start", "end", "schedule", "batches", "loss_fn"})
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
    """The record of a method. Call it like the class to make a pruner.

    Examples:
        >>> method = flipout.METHODS["lamp"]
        >>> method.title, method.about
        ('LAMP', 'weights that are small against the larger ones of their layer')
        >>> pruner = method(model, optimizer, sparsity=0.9, steps=steps)
    """

    name: str
    cls: type[Pruner]
    title: str
    about: str
    colour: str
    needs: LoopNeeds = field(default_factory=LoopNeeds)

    def __call__(self, *args: Any, **kwargs: Any) -> Pruner:
        return self.cls(*args, **kwargs)

    @cached_property
    def _constructor(self) -> tuple[dict[str, inspect.Parameter], frozenset[str]]:
        return read_constructor(self.cls)

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The parameters of the constructor, with resolved annotations, but for `**options`."""
        return self._constructor[0]

    @property
    def common(self) -> frozenset[str]:
        """The options of every pruner that this method passes on: `scope`, `floor`, `noise` and so on."""
        return self._constructor[1]

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


HIDDEN = frozenset({"criterion", "statistics", "form", "sparsities"})
"""Arguments of every pruner that a method gives itself, or that cannot be written as text."""
PRUNER_OPTIONS = frozenset(inspect.signature(Pruner.__init__).parameters) - GIVEN - HIDDEN


def read_constructor(cls: type[Pruner]) -> tuple[dict[str, inspect.Parameter], frozenset[str]]:
    """The parameters of a constructor, and the options of every pruner that it passes on.

    `**options` with a declared type, `Unpack[SomeOptions]`, passes on these. Any other `**options` passes on what the
    constructor of the base class takes.
    """
    parameters: dict[str, inspect.Parameter] = {}
    passed_on: set[str] = set()
    declared: set[str] | None = None  # what `**options` of a subclass lets through
    for base in cls.__mro__:
        if "__init__" not in vars(base):
            continue
        if base is Pruner:
            passed_on |= PRUNER_OPTIONS if declared is None else PRUNER_OPTIONS & declared
            break
        constructor = vars(base)["__init__"]
        hints, signature = get_type_hints(constructor, include_extras=True), inspect.signature(constructor).parameters
        first = list(signature)[:3]  # self, model, optimizer, by any name
        for name, parameter in signature.items():
            given = parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            if name not in first and given and (declared is None or name in declared):
                parameters.setdefault(name, parameter.replace(annotation=hints.get(name, Any)))
        rest = next((name for name, p in signature.items() if p.kind is p.VAR_KEYWORD), None)
        if rest is None:
            break
        if unpacked := get_args(hints.get(rest)):
            own = set(get_type_hints(unpacked[0]))
            declared = own if declared is None else declared & own
    for hidden in ("criterion", "statistics"):  # of a base class, not of the user
        parameters.pop(hidden, None)
    return parameters, frozenset(passed_on | (PRUNER_OPTIONS & parameters.keys()))


def argument_texts(cls: type) -> dict[str, str]:
    """The texts of the `Args:` sections in the docstrings of a class and its bases, by argument."""
    texts: dict[str, str] = {}
    for base in cls.__mro__:
        for name, text in _own_texts(inspect.cleandoc(base.__doc__ or "")).items():
            texts.setdefault(name, text)
    return texts


def _own_texts(docstring: str) -> dict[str, str]:
    _, _, section = docstring.partition("\nArgs:\n")
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
        known = self._records.get(record.name)
        if known is not None and _full_name(known.cls) != _full_name(record.cls):  # a cell that is run again is fine
            raise ValueError(
                f"the method name {record.name!r} is taken by {known.cls.__qualname__}; choose another name"
            )
        self._records[record.name] = record

    def record_of(self, cls: type[Pruner], name: str) -> Method:
        """The record of a class: the declared one, or one made from its name and docstring."""
        declared = {record.cls: record for record in self._records.values()}
        if cls in declared:
            return replace(declared[cls], name=name)
        about = (inspect.getdoc(cls) or "").partition("\n")[0].rstrip(".") if cls.__doc__ else ""
        digest = hashlib.sha256(name.encode()).digest()
        needs = next((declared[base].needs for base in cls.__mro__ if base in declared), LoopNeeds())
        return Method(name, cls, cls.__name__, about, PALETTE[digest[0] % len(PALETTE)], needs)

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
                if not (isinstance(cls, type) and issubclass(cls, Pruner)):
                    raise TypeError(f"{cls!r} is not a subclass of flipout.Pruner")
                record = self.record_of(cls, point.name)
                _ = record.parameters  # whose annotations must resolve
                self.add(record)
            except Exception as error:  # of any kind: one broken package must not take the other methods away
                warnings.warn(
                    f"the method {point.name!r} of an installed package cannot be used: {error}", stacklevel=3
                )


def _full_name(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


METHODS = Registry()
"""Every method by name, such as `METHODS["flipout"]`."""

PrunerClass = TypeVar("PrunerClass", bound=type[Pruner])


def register(
    name: str, *, title: str, about: str, colour: str | None = None, needs: LoopNeeds | None = None
) -> Callable[[PrunerClass], PrunerClass]:
    """Declare a class as a method, by its name in `METHODS` and on the command line.

        @flipout.register("largest-first", title="Largest first", about="the largest weights")
        class LargestFirst(flipout.Gradual):
            ranks_by = staticmethod(lambda weight: -weight.abs())

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
