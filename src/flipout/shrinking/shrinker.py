"""The shrinker of a pruner: it makes the network smaller while it is trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from ..channels.comparison import Arguments, NamedExample, as_arguments, examples_in, tensors_of
from ..channels.copies import UnsupportedNetworkError
from ..channels.removable import Remainder, RemovableChannels
from ..host import Host
from ..modules import named_tensors, unwrapped
from ..problems import NotShrunkWarning, warn
from ..runtime.example_call import UnsuitableCallError, few_examples, tensor_arguments
from ..views import Positions
from ..views.cut import Indices, take
from . import refusals
from .loop_calls import LoopCall, LoopCalls, problem_of
from .network_cut import NetworkCut, same_indices
from .state import Shrink, ShrunkState, describe_example, example_of_zeros, read_shrunk_state
from .trial import try_cut

WITHOUT = "Train without shrinking"

SAVE_EXPANDED = (
    "the network is shrunk, and what is saved now would not fit the original one. Save the model, the optimizer and "
    "the pruner inside `with pruner.expanded():`; a run that loads them continues with the shrunk network"
)

LOAD_EXPANDED = (
    "the network is shrunk, and a state of the original one does not fit it. Load the model, the optimizer and, last, "
    "the pruner inside `with pruner.expanded():`"
)

LEAST_SAVED = 0.05
"""The share of the multiply-adds of a step that a shrink must save. It bounds the number of shrinks."""

FIXED_COST, COST_PER_WEIGHT = 5e9, 100.0
"""What a shrink costs, in multiply-adds of a forward pass: tracing the network and trying the smaller one, and moving
all weights. (Measured: 0.1 s for a perceptron, 1 s for VGG19 with 20 M weights, at 20 G multiply-adds a second of which
a training step takes three times as many as a forward pass.)"""

USUAL_BATCH = 32
"""The batch size, before the network was traced with an example."""


class Shrinker:
    """Removes channels that influence nothing from the network that is being trained, and puts them back."""

    def __init__(self, pruner: Host) -> None:
        self._pruner = pruner
        self.shrinks: list[Shrink] = []
        self._cuts: list[NetworkCut] = []  # of the model, and of the copies that follow it
        self._followers: list[nn.Module] = []
        self._example: Arguments | None = None
        self._channels: RemovableChannels | None = None
        self._batch = USUAL_BATCH
        self._looked: tuple[int, bool] = (-1, False)  # after how many prunings, and whether a shrink is worth while
        self._impossible = False  # a shrink that seemed worth while has failed
        self._handles: list[Any] = []
        self._traced: tuple[str, RemovableChannels | None] = "", None  # of the state that is loaded
        self._calls, self._asked = LoopCalls(), False  # what the loop calls, noted from the first question on
        self._expansions = 0  # how many `expanded()` are open
        self._resting: Mapping[str, Indices] = {}  # what is left of the network after the last of them

    def __deepcopy__(self, memo: dict[int, Any]) -> Shrinker:
        """The copy has no hooks yet, and no `expanded()` is open: a copy that is made inside one stays whole."""
        new = Shrinker.__new__(Shrinker)
        memo[id(self)] = new
        own: dict[str, Any] = {"_handles": [], "_calls": LoopCalls(), "_expansions": 0, "_resting": {}}
        vars(new).update(
            {name: own[name] if name in own else deepcopy(each, memo) for name, each in vars(self).items()}
        )
        return new

    def attach(self) -> None:
        """Refuse `state_dict()` and `load_state_dict()` of the optimizer while the network is shrunk."""
        optimizer = self._pruner.optimizer

        def refuse(message: str) -> None:
            if self.shrunk:
                raise RuntimeError(message)

        self._handles = [
            optimizer.register_state_dict_pre_hook(lambda _: refuse(SAVE_EXPANDED)),
            optimizer.register_load_state_dict_pre_hook(lambda *_: refuse(LOAD_EXPANDED)),
        ]

    def remove(self) -> None:
        """Make the network whole, and leave no hook."""
        self.expand()
        self._calls.stop()
        for handle in self._handles:
            handle.remove()

    # Reading.

    @property
    def shrunk(self) -> bool:
        return bool(self._cuts)

    @property
    def indices(self) -> Mapping[str, Indices]:
        """For each parameter and buffer that has lost channels, the original indices that are left, per dimension."""
        return self._cuts[0].indices if self._cuts else {}

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        """The original shapes of these tensors."""
        return self._cuts[0].shapes if self._cuts else {}

    @property
    def worth_shrinking(self) -> bool:
        """Whether a shrink would save more time than it takes. Read it after each step; it changes at prunings only.

        It depends on the masks and the plan alone. It is False while pruned weights can come back, for methods that
        need the whole network, and after a shrink that was not possible.
        """
        pruner, self._asked = self._pruner, True
        if self._looked[0] != len(pruner.events) and pruner.step and pruner.permanent:
            self._looked = len(pruner.events), self._pays()
        return self._looked[1]

    def _pays(self) -> bool:
        pruner = self._pruner
        if self._impossible or refusals.of_method(pruner) or refusals.of_training(pruner):
            return False
        if refusals.of_tensors(pruner, [weight.name for weight in pruner.weights]):
            return False
        if self._channels is None:
            saved, before = estimate(pruner.masks)
        else:
            every, left = self._remainder(self._channels).multiply_adds
            before = every * (self.shrinks[-1].share if self._left else 1.0)
            saved = before - left
        since = pruner.events[-1].step if pruner.events else 0
        examples = (pruner.schedule.steps - since) * self._batch
        return is_repaid(saved, before, pruner.prunable, examples)

    @property
    def _left(self) -> Mapping[str, Indices]:
        """What is left of the network, or will be after `expanded()`."""
        return self._resting if self._expansions else self.indices

    # Acting.

    @torch.no_grad()
    def shrink(self, example_input: NamedExample) -> None:
        """Remove the channels that influence nothing from the network. Training continues as before.

        The model, its modules and its parameters stay the same objects, with smaller tensors in them. The optimizer's
        state and everything else that belongs to a weight moves with it. In training mode the outputs and the gradients
        of the remaining channels are the same up to rounding, and so is the rest of the training.

        If the network cannot be shrunk, nothing is changed, and a `ValueError` says why. If `worth_shrinking` was True,
        it is a `NotShrunkWarning` instead, and training continues: `worth_shrinking` is decided before the network is
        traced. Within `expanded()` the network is shrunk when that ends.

        Args:
            example_input: the inputs that the model is called with: a tensor, a tuple, or a dictionary of arguments by
                name. A batch of training data is fine; the values do not matter. The network is tried with this example
                only. So it is not shrunk if the training calls it with anything else, or calls one of its modules
                directly.
        """
        example = as_arguments(example_input)
        try:
            self._shrink(example)
        except ValueError as error:
            _, advised = self._looked
            if not advised:
                raise
            self._impossible = True
            reason = str(error).removesuffix(f". {WITHOUT}")
            warn(f"{reason}. The training continues without shrinking", NotShrunkWarning)
        self._looked = len(self._pruner.events), False

    def _shrink(self, example: Arguments) -> None:
        pruner = self._pruner
        try:
            few = few_examples(tensor_arguments(unwrapped(pruner.model), *example))
        except (UnsuitableCallError, TypeError) as error:
            raise ValueError(
                f"the network cannot be shrunk, because it does not accept the example: {error}"
            ) from error
        self._calls.stop()
        self._asked = True
        problems = (problem_of(call, few) for call in self._calls.seen)
        _refuse(refusals.of_method(pruner) or refusals.of_training(pruner) or next(filter(None, problems), None))
        with self.expanded():
            channels, remainder = self._trace(few)
            is_new = not same_indices(self._resting, remainder.tensors)
            self._resting, self._channels = remainder.tensors, channels
        self._example, self._batch, self._impossible = few, examples_in(example), False
        if pruner.finished and not remainder.tensors:  # before that, another pruning may follow
            warn(
                "shrink() removed nothing: kept weights read every channel that could be removed. Prune more, or "
                "prune whole channels with granularity='channel'",
                NotShrunkWarning,
            )
        if is_new:
            self.shrinks.append(Shrink(pruner.step, self._computed_with(remainder.tensors), remainder.share))

    def expand(self) -> None:
        """Put all channels back: the original architecture, with the same outputs.

        The remaining channels of a tensor are written into the original. Pruned weights are zero. Kept weights, biases
        and norms of removed channels have the values that they had when they were removed; nothing reads them.
        """
        self._make_whole()
        self._resting, self._looked = {}, (len(self._pruner.events), False)

    @contextmanager
    def expanded(self) -> Iterator[nn.Module]:
        """Put all channels back for a moment, to save or to look at the network; after that it is shrunk again.

            with pruner.expanded():
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), ...}, path)

        If the network is not shrunk, nothing happens. A state that is loaded inside the block decides which channels
        the network has after it. After `expand()` or `remove()` inside the block the network stays whole.
        """
        if not self._expansions:
            self._resting = self.indices
            self._make_whole()
        self._expansions += 1
        try:
            yield self._pruner.model
        finally:
            self._expansions -= 1
            if not self._expansions:
                resting, self._resting = self._resting, {}
                self._cut_to(resting)

    def follow(self, copy: nn.Module) -> None:
        """Shrink and expand a copy of the model together with it from now on, such as a moving average of its weights.

        The copy must have the original shapes. Call it before the first shrink, or within `expanded()`. A copy that
        follows already is left as it is.
        """
        if any(each is copy for each in self._followers):
            return
        model = self._pruner.model
        here, there = named_tensors(model), named_tensors(copy)
        if self.shrunk or any(name not in there or there[name].shape != tensor.shape for name, tensor in here.items()):
            raise ValueError(
                "only a copy of the whole model can follow it. Call follow() before the first shrink, or inside "
                "`with pruner.expanded():`, with a copy that has every parameter and buffer of the model"
            )
        taken = {id(tensor) for each in (model, *self._followers) for tensor in named_tensors(each).values()}
        if shared := [name for name in here if id(there[name]) in taken]:
            raise ValueError(
                f"{shared[0]} of the copy is the same tensor as that of the model, or of another copy that follows. "
                "Pass a copy with tensors of its own, such as copy.deepcopy(model)"
            )
        self._followers.append(copy)

    def before_step(self) -> None:
        """Called before each update: the calls of the step are over."""
        self._calls.stop()

    def after_step(self) -> None:
        """Called after each update: note the calls of the next step if a pruning follows it."""
        pruner = self._pruner
        due = pruner.due
        if self._asked and due is not None and due.step == pruner.step + 1 and not refusals.of_modules(pruner.model):
            self._calls.watch(pruner.model)

    def refuse_copy(self, model: nn.Module) -> None:
        """Refuse a copy of the model that the masks do not fit."""
        if problem := refusals.of_copy(self._pruner.masks if self.shrunk else {}, model):
            raise ValueError(problem)

    # In states.

    def saved(self) -> str:
        """What a state says about the shrunk network; it is saved while the network is whole."""
        if self.shrunk:
            raise RuntimeError(SAVE_EXPANDED)
        state = ShrunkState(self._resting, tuple(self.shrinks), describe_example(self._example), self._batch)
        return state.as_text()

    def check(self, text: str, masks: Mapping[str, Tensor], *, finished: bool) -> None:
        """Refuse what a state says about the shrunk network if it does not fit this one, which is whole, or the masks
        of the state. `finished` says whether the last pruning of the state is done."""
        state, pruner = read_shrunk_state(text), self._pruner
        tensors = named_tensors(pruner.model)
        for name, each in state.indices.items():
            if name not in tensors or len(each) != tensors[name].ndim:
                raise ValueError(f"`shrunk` of the state does not fit the model: it has no such tensor {name}")
            for size, index in zip(tensors[name].shape, each, strict=True):
                if index is not None and int(index[-1]) >= size:
                    raise ValueError(f"`shrunk` of the state does not fit the model: {name} has other channels there")
        if state.indices and not state.example:
            raise ValueError("`shrunk` of the state has removed channels, but no example of the inputs")
        self._traced = text, None
        if not state.example:
            return
        kept = {weight.name: weight.take(masks[weight.name]) for weight in pruner.weights}
        for name in state.indices.keys() & kept.keys() if self._keeps_weights(finished) else ():
            left = take(kept[name], Positions(kept[name].shape, state.indices[name]))
            if int(left.sum()) < int(kept[name].sum()):
                raise ValueError(f"`shrunk` of the state removes weights of {name} that the next pruning needs")
        if pruner.attached and not refusals.of_training(pruner):
            example = example_of_zeros(state.example, pruner.weights[0].mask.device)
            try:
                channels = RemovableChannels(unwrapped(pruner.model), *example)
            except UnsupportedNetworkError:  # the example has zeros in place of data, such as token numbers
                return
            _refuse_live_channels(channels, state.indices, kept)
            self._traced = text, channels

    def load(self, text: str) -> None:
        """Shrink the network as it was when a state was saved. The weights and the optimizer's state are loaded."""
        state, pruner = read_shrunk_state(text), self._pruner
        (checked, channels), self._traced = self._traced, ("", None)
        assert checked == text
        self.shrinks[:], self._looked, self._batch = state.shrinks, (-1, False), state.batch
        self._example = example_of_zeros(state.example, pruner.weights[0].mask.device) if state.example else None
        self._channels, self._impossible = channels, False
        if not pruner.attached:
            return
        if problem := self._obstacle(state.indices):
            self._impossible = True
            self._cut_to({})
            warn(
                f"the state is that of a shrunk network, and this one cannot be shrunk: {problem}. The training "
                "continues with the whole network",
                NotShrunkWarning,
            )
            return
        self._impossible = bool(state.indices) and channels is None  # it stays as small as it was
        self._cut_to(state.indices)

    def _obstacle(self, indices: Mapping[str, Indices]) -> str | None:
        """Why the network of a state cannot be shrunk here; None if it can."""
        pruner = self._pruner
        if not indices:
            return None
        if problem := refusals.of_training(pruner) or refusals.of_tensors(pruner, indices):
            return problem
        assert self._example is not None
        try:
            pruner.units.show(self._example)
            pruner.units.ready(pruner.model)
        except ValueError as error:  # the channels of the whole network have to be known before it is cut
            return str(error)
        return None

    # Inside.

    def _trace(self, example: Arguments) -> tuple[RemovableChannels, Remainder]:
        """Find what can be removed from the whole network, and try it on a copy."""
        network = unwrapped(self._pruner.model)
        try:
            with torch.random.fork_rng(devices={each.device for each in tensors_of(example) if each.is_cuda}):
                channels = RemovableChannels(network, *example)
                remainder = self._remainder(channels)
                if channels.problem and not self._remainder(channels, finished=True).tensors:
                    raise UnsupportedNetworkError(channels.problem)
                _refuse(refusals.of_tensors(self._pruner, remainder.tensors))
                try_cut(network, remainder.tensors, channels.attributes(network, remainder.tensors), example)
        except UnsupportedNetworkError as error:
            raise ValueError(f"the network cannot be shrunk: {error}. {WITHOUT}") from error
        return channels, remainder

    def _remainder(self, channels: RemovableChannels, *, finished: bool | None = None) -> Remainder:
        """What is left of the network by the masks, as if the last pruning were done if `finished`."""
        masks = {weight.name: (weight.mask, weight.view.indices) for weight in self._pruner.weights}
        final = self._pruner.finished if finished is None else finished
        return channels.remainder(masks, keeps_weights=self._keeps_weights(final))

    def _keeps_weights(self, finished: bool) -> bool:
        """Whether the training depends on kept weights that influence nothing: the next event ranks them with all
        others, and noise relative to the weights is computed from all of them."""
        noise = self._pruner.work.noise
        return not finished or (noise is not None and noise.relative_to == "weight")

    def _computed_with(self, indices: Mapping[str, Indices]) -> int:
        """The prunable weights that are left with these indices."""
        every = {weight.name: weight.view.positions.shape for weight in self._pruner.weights}
        left = {name: Positions(every[name], each).held.numel() for name, each in indices.items() if name in every}
        return sum(left.get(name, shape.numel()) for name, shape in every.items())

    def _cut_to(self, indices: Mapping[str, Indices]) -> None:
        """Cut the network, which is whole; within `expanded()` when that ends."""
        if self._expansions:
            self._resting = indices
        elif indices:
            pruner = self._pruner
            cuts = [
                NetworkCut(pruner.model, pruner.optimizer, pruner.weights),
                *(NetworkCut(copy, None, ()) for copy in self._followers),
            ]
            whole = unwrapped(pruner.model)
            attributes = {} if self._channels is None else self._channels.attributes(whole, indices)
            for cut in cuts:  # first what may fail for want of memory; nothing is changed by it
                cut.prepare(indices, attributes)
            for cut in cuts:
                cut.commit()
            self._cuts = cuts
            self._forget_shapes()
            self._calls.watch(pruner.model, self._refuse_call)

    def _refuse_call(self, call: LoopCall) -> None:
        """Stop a training that calls a shrunk network in another way than was tried."""
        if self._cuts and self._example is not None and (problem := problem_of(call, self._example)):
            raise RuntimeError(
                f"the network was shrunk, but {problem}. Call pruner.expand(), and train without shrinking"
            )

    def _make_whole(self) -> None:
        cuts, self._cuts = self._cuts, []
        for cut in cuts[:1]:
            cut.undo()
        for cut in cuts[1:]:
            cut.undo({weight.name: weight.mask for weight in self._pruner.weights})
        if cuts:
            self._forget_shapes()

    def _forget_shapes(self) -> None:
        self._pruner.work.forget()
        self._pruner.dead.forget()
        self._pruner.sparse_kernels.update()


def is_repaid(saved: float, before: float, weights: int, examples: float) -> bool:
    """Whether a shrink pays: decided from the masks and the plan alone, so that every run decides the same.

    Args:
        saved: the multiply-adds for one example that it saves.
        before: those of the network as it is.
        weights: the number of weights of the original network.
        examples: how many examples the network is still trained with.
    """
    return saved >= LEAST_SAVED * before and saved * examples >= FIXED_COST + COST_PER_WEIGHT * weights


def estimate(masks: Mapping[str, Tensor]) -> tuple[float, float]:
    """Estimate the multiply-adds that inputs cost which no weight reads, and all of them, before the network is traced.

    It does not know how often a weight is used, nor which layer reads which, and takes the second dimension of a weight
    as its inputs.
    """
    saved = total = 0.0
    for mask in masks.values():
        if mask.ndim > 1 and mask.numel():
            total += mask.numel()
            saved += mask.numel() * float((~mask.transpose(0, 1).flatten(1).any(1)).float().mean())
    return saved, total


def _refuse_live_channels(
    channels: RemovableChannels, indices: Mapping[str, Indices], masks: Mapping[str, Tensor]
) -> None:
    """Refuse indices of a state that do not belong together, or that remove channels which its masks need."""
    left = {name: Positions(shape, indices.get(name, (None,) * len(shape))) for name, shape in channels.weights.items()}
    blocks = {name: (torch.ones(where.held, dtype=torch.bool), where.indices) for name, where in left.items()}
    if not same_indices(channels.remainder(blocks).tensors, indices):
        raise ValueError(
            "`shrunk` of the state does not fit the model: the remaining channels of its tensors do not fit together"
        )
    whole = {name: (mask, (None,) * mask.ndim) for name, mask in masks.items()}
    needed = channels.remainder(whole).tensors
    for name, each in indices.items():
        for here, least in zip(each, needed.get(name, (None,) * len(each)), strict=True):
            if here is not None and (least is None or not bool(torch.isin(least, here).all())):
                raise ValueError(f"`shrunk` of the state removes channels of {name} that its masks need")


def _refuse(problem: str | None) -> None:
    if problem is not None:
        raise ValueError(f"the network cannot be shrunk: {problem}")
