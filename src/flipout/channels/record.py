"""Record a call of a network with torch.export: its operations, with shapes, names and places in the user's code."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import operator
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from ..modules import unwrapped
from .comparison import output_tensors
from .copies import UnsupportedNetworkError, evaluation_copy, first_line
from .structure import Structure

PREFIX = "network."
"""The name of the network inside the module that is recorded."""
PACKAGES = ("/torch/", "/flipout/channels/")
"""Files that are not the user's code."""


@dataclass(frozen=True)
class Recording:
    """A recorded call.

    Args:
        module: the operations, a graph of functions of torch.
        tensors: the name of the parameter or buffer that each such input of the graph stands for.
        others: the values of the other inputs of the graph: those of the example, and constants in the code.
    """

    module: fx.GraphModule
    tensors: Mapping[fx.Node, str]
    others: Mapping[fx.Node, Any]

    @property
    def graph(self) -> fx.Graph:
        return self.module.graph


def record(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, *, functional: bool = False
) -> Recording:
    """Record a call of a network in evaluation mode, on the CPU. The network is not changed.

    Raise an `UnsupportedNetworkError` that names the place if the network makes decisions by values.

    Args:
        model: the network.
        args: the positional arguments of the call.
        kwargs: its keyword arguments.
        functional: whether no tensor may be read after it was changed in place, except as the result of that.
    """
    structure = Structure(unwrapped(model), (tuple(args), dict(kwargs or {})))
    if (known := _RECORDINGS.get((structure.text, functional))) is not None:
        return known[1]
    network = evaluation_copy(unwrapped(model)).cpu()
    example = pytree.tree_map_only(Tensor, Tensor.cpu, copy.deepcopy((tuple(args), dict(kwargs or {}))))
    try:
        with torch.enable_grad(), without_cache(network), without_fast_paths(), _without_printed_errors():
            program = torch.export.export(_Flat(network), *example, strict=False)
            if functional and not is_functional(program.graph):
                program = program.run_decompositions({})
    except Exception as error:  # the user's code may raise any error
        raise UnsupportedNetworkError(f"the network cannot be recorded ({_explained(error)})") from error
    tensors: dict[str, Tensor] = dict(network.named_parameters(remove_duplicate=False))
    tensors |= network.named_buffers(remove_duplicate=False)
    first = {id(tensor): name for name, tensor in reversed(tensors.items())}
    nodes = {node.name: node for node in program.graph.nodes}
    names = {
        nodes[spec.arg.name]: first[id(tensors[spec.target.removeprefix(PREFIX)])]
        for spec in program.graph_signature.input_specs
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER) and spec.target is not None
    }
    leaves, others = iter(pytree.tree_leaves(example)), dict[fx.Node, Any]()
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            others[nodes[spec.arg.name]] = next(leaves)
        elif nodes[spec.arg.name] not in names:
            others[nodes[spec.arg.name]] = program.constants[str(spec.target)]
    found = Recording(program.graph_module, names, others)
    _keep(structure, found, [True, False] if is_functional(program.graph) and not functional else [functional])
    return found


RECORDINGS = 8
"""How many recordings are kept, for networks of the same structure."""
_RECORDINGS: dict[tuple[bytes | None, bool], tuple[Structure, Recording]] = {}


def _keep(structure: Structure, recording: Recording, kinds: list[bool]) -> None:
    """Keep a recording for networks of the same structure, in place of the oldest ones."""
    if structure.text is not None:
        _RECORDINGS.update({(structure.text, kind): (structure, recording) for kind in kinds})
        for old in list(_RECORDINGS)[:-RECORDINGS]:
            del _RECORDINGS[old]


def is_functional(graph: fx.Graph) -> bool:
    """Whether nothing reads a tensor after it was changed in place, except as the result of that operation."""
    order = {node: number for number, node in enumerate(graph.nodes)}
    sharing: dict[int, list[fx.Node]] = {}
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op == "call_function" and schema is None and node.target is not operator.getitem:
            return False  # a graph within this one may do anything
        for argument, each in zip(schema.arguments if schema else (), node.args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                known = sharing.get(_storage(each), [])
                if any(order[user] > order[node] for old in known for user in old.users):
                    return False
        sharing.setdefault(_storage(node), []).append(node)
    return True


def _storage(node: Any) -> int:
    """A number for the memory of a node's tensor; -1 if it is not one."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return int(value.untyped_storage()._cdata) if isinstance(value, Tensor) else -1


class _Flat(nn.Module):
    """Returns the tensors of a network's output, whatever they are nested in."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.training = network.training

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        return output_tensors(self.network(*args, **kwargs))


@contextlib.contextmanager
def without_cache(model: nn.Module) -> Iterator[None]:
    """Let a model return no keys and values of its attentions."""
    configs: dict[int, Any] = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    caching = [config for config in configs.values() if getattr(config, "use_cache", False) is True]
    for config in caching:
        config.use_cache = False
    try:
        yield
    finally:
        for config in caching:
            config.use_cache = True


@contextlib.contextmanager
def without_fast_paths() -> Iterator[None]:
    """Let torch's attention modules and layers of transformers run operation by operation, and call their children."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextlib.contextmanager
def _without_printed_errors() -> Iterator[None]:
    """Let torch.export raise its errors without printing them, and without warnings about itself."""
    logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    before, logger.disabled = logger.disabled, True
    try:
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.filterwarnings("ignore", message="The tensor attributes? .*_flat_weights")
            yield
    finally:
        logger.disabled = before


def line_of(node: fx.Node) -> str:
    """The place in the user's code that an operation was recorded at: `file.py:12`; empty if it is not known."""
    return _last_line(node.meta.get("stack_trace") or "")


def _last_line(trace: str) -> str:
    """The last place in the user's code that a trace names: `file.py:12`; empty if there is none."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', trace)
    own = [frame for frame in frames if not any(part in frame[0] for part in PACKAGES)]
    return f"{own[-1][0].rpartition('/')[2]}:{own[-1][1]}" if own else ""


def module_of(node: fx.Node) -> str:
    """The name of the innermost module that an operation was recorded in."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]).removeprefix(PREFIX.rstrip(".")).lstrip(".") if stack else ""


def _explained(error: BaseException) -> str:
    """The reason of an error of torch.export, with the user's line if there is one."""
    reason, line = first_line(error), _last_line(str(error))
    if "data-dependent" in str(error).lower() or "GuardOnDataDependent" in type(error).__name__:
        reason = "its control flow depends on data"
    return f"{reason}, at {line}" if line else reason
