"""The part of a pruner that makes the network smaller while it is trained."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, cast

import torch
from torch import Tensor, nn

from ..graph.comparison import Example, as_example
from ..graph.copies import UnsupportedNetworkError
from ..graph.removable_channels import Remainder, RemovableChannels
from ..layers import Layer
from ..modules import named_tensors, unwrapped
from ..positions import Positions
from ..pruning_event import PruningEvent
from ..runtime import attachments
from ..runtime.example_call import few_examples
from ..runtime.runner import Runner
from ..warnings import NotShrunkWarning
from . import decision, refusals
from .network_cut import Indices, NetworkCut, same_indices
from .parked_weights import set_gradients
from .shrunk_state import Shrink, ShrunkState, describe_example, example_of_zeros, first_size, read_shrunk_state
from .trial import try_cut

if TYPE_CHECKING:
    from ..pruner import Pruner

WITHOUT = "Train without shrinking"


class Shrinking(PruningEvent):
    """Removes channels that influence nothing from the network that is being trained, and puts them back."""

    needs_whole_network: ClassVar[str] = ""
    """Why a method cannot be shrunk; empty if it can."""

    def _start_shrinking(self) -> None:
        self.shrinks: list[Shrink] = []
        """The shrinks so far."""
        self._cuts: list[NetworkCut] = []  # of the model, and of the copies that follow it
        self._followers: list[nn.Module] = []
        self._example: tuple[Tensor, ...] | None = None
        self._channels: RemovableChannels | None = None
        self._batch = decision.USUAL_BATCH
        self._looked: tuple[int, bool] = (-1, False)  # after how many prunings, and whether a shrink is worth while
        self._impossible = False  # a shrink that seemed worth while has failed
        self._contract()

    def _contract(self) -> None:
        self._expansions = 0  # how many `expanded()` are open
        self._resting: Mapping[str, Indices] = {}  # what is left of the network after the last of them

    # Reading.

    @property
    def shrunk(self) -> bool:
        """Whether channels are removed from the network at the moment."""
        return bool(self._cuts)

    @property
    def computed(self) -> int:
        """The prunable weights that the network computes with: all of them, unless it is shrunk."""
        return sum(layer.weight.numel() for layer in self.layers)

    @property
    def shrunk_indices(self) -> Mapping[str, Indices]:
        """For each parameter and buffer that has lost channels, the original indices that are left, per dimension."""
        return self._cuts[0].indices if self._cuts else {}

    @property
    def _left(self) -> Mapping[str, Indices]:
        """What is left of the network, or will be after `expanded()`."""
        return self._resting if self._expansions else self.shrunk_indices

    @property
    def parked(self) -> Sequence[Layer]:
        return self._cuts[0].parked if self._cuts else ()

    @property
    def worth_shrinking(self) -> bool:
        """Whether `shrink` would save more time than it takes. Ask after each step: it looks after prunings only.

        It depends on the masks and the plan alone. It is False while pruned weights can come back, for methods that
        need the whole network, and after a shrink that was not possible.
        """
        pruner = self._pruner
        if self._looked[0] != len(self.events) and self.step and not pruner.regrows:
            self._looked = len(self.events), self._pays()
        return self._looked[1]

    def _pays(self) -> bool:
        pruner = self._pruner
        if self._impossible or refusals.of_method(pruner) or refusals.of_training(pruner):
            return False
        if refusals.of_tensors(pruner, [layer.name for layer in self.layers]):
            return False
        if self._channels is None:
            saved, before = decision.estimate(pruner.masks)
        else:
            whole, left = self._remainder(self._channels).multiply_adds
            before = whole * (self.shrinks[-1].share if self._left else 1.0)
            saved = before - left
        since = self.events[-1].step if self.events else 0
        examples = (self.schedule.steps - since) * self._batch
        return decision.is_repaid(saved, before, self.prunable, examples)

    # Acting.

    @torch.no_grad()
    def shrink(self, example_input: Example) -> nn.Module:
        """Remove the channels that influence nothing from the network, and return it. Training goes on as before.

        The model, its modules and its parameters stay the same objects, with smaller tensors in them; the optimizer's
        state and everything else that belongs to a weight moves with it. In training mode the outputs and the gradients
        of what is left are the same to rounding, and so is all that follows.

        If the network cannot be shrunk, nothing is changed, and a `ValueError` says why. After `worth_shrinking` was
        True it is a `NotShrunkWarning`, because that is decided before the network is traced: training goes on without.

        Inside of `expanded()` the network is shrunk when that ends.

        Args:
            example_input: the inputs that the model is called with; a batch of training data is fine. Their values do
                not matter.
        """
        example = as_example(example_input)
        try:
            self._shrink(example)
        except ValueError as error:
            _, advised = self._looked
            if not advised:
                raise
            self._impossible = True
            reason = str(error).removesuffix(f". {WITHOUT}")
            warnings.warn(f"{reason}. The training continues without shrinking", NotShrunkWarning, stacklevel=3)
        self._looked = len(self.events), False
        return self.model

    def _shrink(self, example: tuple[Tensor, ...]) -> None:
        pruner, few = self._pruner, few_examples(example)
        self._refuse(refusals.of_method(pruner) or refusals.of_training(pruner))
        with self.expanded():
            channels, remainder = self._trace(few)
            is_new = not same_indices(self._resting, remainder.tensors)
            self._resting = remainder.tensors
        self._channels, self._example, self._batch, self._impossible = channels, few, first_size(example), False
        if is_new:
            self.shrinks.append(Shrink(self.step, self._computed_with(remainder.tensors), remainder.share))

    def expand(self) -> nn.Module:
        """Put all channels back, and return the network: the original architecture, with the same outputs.

        What is left of a tensor is written into the original. Pruned weights are zero. Biases and norms of channels
        that were removed are what they were then; nothing reads them.
        """
        self._make_whole()
        self._resting, self._looked = {}, (len(self.events), False)
        return self.model

    @contextmanager
    def expanded(self) -> Iterator[nn.Module]:
        """Expand the network for a moment, to save or to look at it; after that it is shrunk again.

            with pruner.expanded():
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), ...}, path)

        Without a shrunk network nothing happens. A state that is loaded inside decides what is left after that;
        `expand()` and `remove()` leave the network whole.
        """
        if not self._expansions:
            self._resting = self.shrunk_indices
            self._make_whole()
        self._expansions += 1
        try:
            yield self.model
        finally:
            self._expansions -= 1
            if not self._expansions:
                resting, self._resting = self._resting, {}
                self._cut_to(resting)

    def follow(self, copy: nn.Module) -> None:
        """Shrink and expand a copy of the model together with it from now on, such as a moving average of its weights.

        The copy must have the original shapes. Call it before the first shrink, or inside of `expanded()`. A copy that
        follows already is left as it is.
        """
        if any(each is copy for each in self._followers):
            return
        here, there = named_tensors(self.model), named_tensors(copy)
        if self.shrunk or any(name not in there or there[name].shape != tensor.shape for name, tensor in here.items()):
            raise ValueError(
                "only a copy of the whole model can follow it. Call follow() before the first shrink, or inside "
                "`with pruner.expanded():`, with a copy that has every parameter and buffer of the model"
            )
        taken = {id(tensor) for each in (self.model, *self._followers) for tensor in named_tensors(each).values()}
        if shared := [name for name in here if id(there[name]) in taken]:
            raise ValueError(
                f"{shared[0]} of the copy is the same tensor as that of the model, or of another copy that follows. "
                "Pass a copy with tensors of its own, such as copy.deepcopy(model)"
            )
        self._followers.append(copy)

    # Around steps, and in states.

    def _drop_pruned(self) -> None:
        for cut in self._cuts[:1]:
            cut.drop_pruned()

    def _set_parked_gradients(self) -> None:
        set_gradients({layer.name: layer for layer in self.layers}, self.parked)

    def shrunk_state(self) -> ShrunkState:
        """What a state says about the shrunk network; it is saved while the network is whole."""
        return ShrunkState(self._resting, tuple(self.shrinks), describe_example(self._example), self._batch)

    def check_shrunk_state(self, text: str) -> None:
        """Refuse what a state says about the shrunk network if it does not fit this one."""
        tensors = named_tensors(self.model)
        for name, each in read_shrunk_state(text).indices.items():
            if name not in tensors or len(each) != tensors[name].ndim:
                raise ValueError(f"`shrunk` of the state does not fit the model: it has no such tensor {name}")
            for size, index in zip(tensors[name].shape, each, strict=True):
                if index is not None and not (len(index) and int(index.min()) >= 0 and int(index.max()) < size):
                    raise ValueError(f"`shrunk` of the state does not fit the model: {name} has other channels there")

    def _load_shrunk_state(self, text: str) -> None:
        """Shrink the network as it was when a state was saved. The weights and the optimizer's state are loaded."""
        state, pruner = read_shrunk_state(text), self._pruner
        self.shrinks[:], self._looked, self._batch = state.shrinks, (-1, False), state.batch
        self._example, self._channels = example_of_zeros(state.example, self.layers[0].weight.device), None
        self._impossible = False
        if not attachments.contains(pruner):
            return
        if state.indices and (problem := refusals.of_training(pruner) or refusals.of_tensors(pruner, state.indices)):
            self._impossible = True
            self._cut_to({})
            warnings.warn(
                f"the state is that of a shrunk network, and this one cannot be shrunk: {problem}. The training goes "
                "on with the whole network",
                NotShrunkWarning,
                stacklevel=4,
            )
            return
        if self._example is not None:
            try:
                self._channels = RemovableChannels(unwrapped(self.model), self._example)
            except UnsupportedNetworkError:  # the example has zeros in place of data, such as token numbers
                self._impossible = True  # it stays as small as it was
        self._cut_to(state.indices)

    # Inside.

    @property
    def _pruner(self) -> Pruner:
        return cast("Pruner", self)

    def _refuse_copy(self, model: nn.Module) -> None:
        if problem := refusals.of_copy(self._pruner, model):
            raise ValueError(problem)

    def _refuse(self, problem: str | None) -> None:
        if problem is not None:
            raise ValueError(f"the network cannot be shrunk: {problem}")

    def _trace(self, example: tuple[Tensor, ...]) -> tuple[RemovableChannels, Remainder]:
        """Find what can be removed from the whole network, and try it on a copy."""
        try:
            with torch.random.fork_rng(devices={each.device for each in example if each.is_cuda}):
                channels = RemovableChannels(unwrapped(self.model), example)
                remainder = self._remainder(channels)
                self._refuse(refusals.of_tensors(self._pruner, remainder.tensors))
                try_cut(unwrapped(self.model), remainder.tensors, example)
        except UnsupportedNetworkError as error:
            raise ValueError(f"the network cannot be shrunk: {error}. {WITHOUT}") from error
        return channels, remainder

    def _remainder(self, channels: RemovableChannels) -> Remainder:
        connections = {
            layer.name: channels.connections_of(layer.name, layer.mask, layer.positions.indices)
            for layer in self.layers
        }
        return channels.remainder({name: matrix for name, matrix in connections.items() if matrix is not None})

    def _computed_with(self, indices: Mapping[str, Indices]) -> int:
        """The prunable weights that are left with these indices."""
        whole = {layer.name: Positions.all_of(layer.positions.shape) for layer in self.layers}
        return sum(
            Positions(every.shape, indices.get(name, every.indices)).part.numel() for name, every in whole.items()
        )

    def _cut_to(self, indices: Mapping[str, Indices]) -> None:
        """Cut the network, which is whole; inside of `expanded()` when that ends."""
        if self._expansions:
            self._resting = indices
        elif indices:
            cuts = [
                NetworkCut(self.model, self.optimizer, self.layers),
                *(NetworkCut(copy, None, ()) for copy in self._followers),
            ]
            for cut in cuts:  # first what may fail for want of memory; nothing is changed by it
                cut.prepare(indices)
            for cut in cuts:
                cut.commit()
            self._cuts = cuts
            self._forget_shapes()

    def _make_whole(self) -> None:
        cuts, self._cuts = self._cuts, []
        for cut in cuts[:1]:
            cut.undo()
        for cut in cuts[1:]:
            cut.undo({layer.name: layer.mask for layer in self.layers})
        if cuts:
            self._forget_shapes()

    def _forget_shapes(self) -> None:
        self.runner = Runner(self.runner.compiled)  # it caches views of tensors
        if self.dead_weights is not None:
            self.dead_weights.forget()
        if self.units is not None:
            self.units.forget()
