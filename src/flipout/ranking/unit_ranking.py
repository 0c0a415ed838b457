"""The lowest-ranked units whose weights add up to an exact number, streaming.

Units differ in size: a kernel of 3 x 3 has nine weights, one of 1 x 1 has one, and the last block of a row may be
narrower. Slow and obvious: go through the units from the lowest score up, and take each one if the units after it can
still make up what is then missing, exactly.

Two facts make this fast. If a stretch of the lowest units can be completed, so can every shorter one; so the longest is
found by bisection, over the bins of histograms as in `digits`. And after a unit of one size had to be left, all later
ones of that size have to be left too; so there are at most as many stretches as sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ..problems import NotFiniteError
from .digits import BINS, DIGIT, Scores, bins_beyond_finite, bits_of, histogram_of, ordered
from .host_numbers import counts
from .ranking import Run, smallest, smallest_of_each
from .reachable_counts import least_reachable, reachable

FEW = 1 << 16
"""So many units are sorted on the CPU, which is faster than histograms for them."""


def choose_units(
    scores: Scores,
    alive: Sequence[Tensor],
    sizes: Sequence[int],
    keep: int,
    *,
    floors: Sequence[int],
    dtype: torch.dtype = torch.float32,
    run: Run = lambda function: function,
) -> list[Tensor]:
    """Mark the units to prune so that as many weights are kept as whole units allow, but at most `keep`.

    Args:
        scores: `scores(i)` returns the scores of the units of tensor `i`.
        alive: for each tensor, a boolean tensor of the units that are kept so far.
        sizes: for each tensor, the number of weights of each of its units.
        keep: how many weights to keep.
        floors: for each tensor, the least number of units that it keeps; they are its highest scores.
        dtype: the type that scores are compared in.
        run: wraps elementwise functions, to compile them.
    """
    kept = counts(alive)
    due = sum(number * size for number, size in zip(kept, sizes, strict=True)) - keep
    candidates = list(alive)
    if guarded := [i for i, floor in enumerate(floors) if floor]:
        spare = [max(0, kept[i] - floors[i]) for i in guarded]
        lowest = smallest_of_each(
            lambda n: scores(guarded[n]), [alive[i] for i in guarded], spare, dtype=dtype, run=run
        )
        for i, mark in zip(guarded, lowest, strict=True):
            candidates[i] = mark
    return lowest_units(scores, candidates, sizes, max(0, due), dtype=dtype, run=run)


def lowest_units(
    scores: Scores,
    candidates: Sequence[Tensor],
    sizes: Sequence[int],
    due: int,
    *,
    dtype: torch.dtype = torch.float32,
    run: Run = lambda function: function,
) -> list[Tensor]:
    """Mark the lowest-ranked units with `due` weights together, or as few more as whole units allow."""
    numbers = counts(candidates)
    if len(set(sizes)) == 1:
        return smallest(scores, candidates, -(-due // sizes[0]), dtype=dtype, run=run)
    due = least_reachable(_by_size(sizes, numbers), due)
    if sum(numbers) <= FEW and all(candidate.device.type == "cpu" for candidate in candidates):
        return _lowest_of_few(scores, candidates, sizes, due, dtype)
    marks = [torch.zeros_like(candidate) for candidate in candidates]
    left = list(range(len(sizes)))  # tensors of sizes that can still be taken
    while due:
        search = _Stretch(scores, [candidates[i] & ~marks[i] for i in left], left, sizes, due, dtype)
        for i, mark in zip(left, search.marks(), strict=True):
            marks[i] = marks[i] | mark
        due = search.due
        left = [i for i in left if sizes[i] != search.refused]
    return marks


def _lowest_of_few(
    scores: Scores, candidates: Sequence[Tensor], sizes: Sequence[int], due: int, dtype: torch.dtype
) -> list[Tensor]:
    """The same for few units: they are sorted."""
    for i, candidate in enumerate(candidates):
        if dtype.is_floating_point and not torch.isfinite(scores(i).to(dtype))[candidate].all():
            raise NotFiniteError(i)
    numbers = counts(candidates)
    keys = torch.cat([ordered(scores(i), dtype)[candidate] for i, candidate in enumerate(candidates)])
    order = keys.argsort(stable=True)
    own = torch.tensor(sizes).repeat_interleave(torch.tensor(numbers))[order]
    taken, left = torch.zeros(len(own), dtype=torch.bool), torch.arange(len(own))
    while due:
        ranked = own[left]
        through = {size: (ranked == size).cumsum(0) for size in set(ranked.tolist())}
        available, nothing = {size: int(sums[-1]) for size, sums in through.items()}, dict.fromkeys(through, 0)
        number = _longest(
            len(left),
            lambda first: _completes(available, _added(nothing, through, first), due),  # noqa: B023
        )
        taken[left[:number]] = True
        due -= int(ranked[:number].sum())
        left = left[number:][own[left[number:]] != ranked[number]] if due else left
    chosen = torch.empty_like(taken)
    chosen[order] = taken
    parts = chosen.split(numbers)  # type: ignore[no-untyped-call]
    return [torch.zeros_like(mask).masked_scatter_(mask, part) for mask, part in zip(candidates, parts, strict=True)]


def _completes(available: dict[int, int], taken: dict[int, int], due: int) -> bool:
    """Whether the units that are not taken can make up what is missing, exactly."""
    missing = due - sum(size * number for size, number in taken.items())
    return missing >= 0 and reachable({size: number - taken[size] for size, number in available.items()}, missing)


class _Stretch:
    """The longest run of the lowest units that the others can complete to exactly `due` weights."""

    def __init__(
        self,
        scores: Scores,
        candidates: Sequence[Tensor],
        tensors: Sequence[int],
        sizes: Sequence[int],
        due: int,
        dtype: torch.dtype,
    ) -> None:
        self.scores, self.candidates, self.tensors, self.dtype, self.due = scores, candidates, tensors, dtype, due
        self.sizes = [sizes[i] for i in tensors]
        self.available = _by_size(self.sizes, counts(candidates))
        self.refused: int | None = None
        """The size of the first unit after the stretch; None if it takes everything."""

    def marks(self) -> list[Tensor]:
        """Mark the stretch; `due` is then what is missing after it."""
        if sum(size * number for size, number in self.available.items()) == self.due:
            self.due = 0
            return list(self.candidates)
        taken = dict.fromkeys(self.available, 0)
        prefix: Tensor | None = None
        for shift in range(bits_of(self.dtype) - DIGIT, -1, -DIGIT):
            through = {size: self.histogram_of(size, shift, prefix).cumsum(0) for size in self.available}
            if prefix is None:
                self._check_finite(through)
            place = _longest(BINS - 1, lambda bins: self._fits(_added(taken, through, bins)))  # noqa: B023
            taken = _added(taken, through, place)
            digit = torch.full((), place, dtype=torch.int64)
            prefix = digit - BINS // 2 if prefix is None else prefix << DIGIT | digit
        assert prefix is not None
        return self._take_ties(prefix, taken)

    def histogram_of(self, size: int, shift: int, prefix: Tensor | None) -> Tensor:
        own = [n for n, each in enumerate(self.sizes) if each == size]
        candidates = [self.candidates[n] for n in own]
        place = None if prefix is None else prefix.to(candidates[0].device)
        histogram = histogram_of(
            lambda n: self.scores(self.tensors[own[n]]), candidates, self.dtype, shift, place, candidates[0].device
        )
        return histogram.cpu()

    def _check_finite(self, through: dict[int, Tensor]) -> None:
        beyond = bins_beyond_finite(self.dtype)
        if beyond and any(each[beyond - 1] or each[-1] != each[-1 - beyond] for each in through.values()):
            for n, i in enumerate(self.tensors):
                if not torch.isfinite(self.scores(i).to(self.dtype))[self.candidates[n]].all():
                    raise NotFiniteError(i)

    def _fits(self, taken: dict[int, int]) -> bool:
        return _completes(self.available, taken, self.due)

    def _take_ties(self, threshold: Tensor, taken: dict[int, int]) -> list[Tensor]:
        """Mark everything below the threshold, and as many as fit of the units that are equal to it, in their order."""
        below, equal = [], []
        for n, candidate in enumerate(self.candidates):
            keys, key = ordered(self.scores(self.tensors[n]), self.dtype), threshold.to(candidate.device)
            below.append(candidate & (keys < key))
            equal.append(candidate & (keys == key))
        ties = counts(equal)

        def with_ties(number: int) -> dict[int, int]:
            result = dict(taken)
            for size, here in zip(self.sizes, ties, strict=True):
                result[size] += min(number, here)
                number -= min(number, here)
            return result

        rank = _longest(sum(ties), lambda number: self._fits(with_ties(number)))
        self.due -= sum(size * number for size, number in with_ties(rank).items())
        marks = []
        for n, mark in enumerate(equal):
            if ties[n] > rank and self.refused is None:
                self.refused = self.sizes[n]
            if ties[n] > rank:
                mark &= (mark.flatten().cumsum(0) <= rank).view(mark.shape)
            rank = max(0, rank - ties[n])
            marks.append(below[n] | mark)
        return marks


def _added(taken: dict[int, int], through: dict[int, Tensor], bins: int) -> dict[int, int]:
    """The units that are taken with those of the first bins."""
    return {size: number + (int(through[size][bins - 1]) if bins else 0) for size, number in taken.items()}


def _longest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `most` that fits, if 0 fits and every number below one that fits."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _by_size(sizes: Sequence[int], numbers: Sequence[int]) -> dict[int, int]:
    result: dict[int, int] = {}
    for size, number in zip(sizes, numbers, strict=True):
        result[size] = result.get(size, 0) + number
    return result


def planned_counts(units: Mapping[int, int], floors: Mapping[int, int], asked: Sequence[int]) -> list[int]:
    """How many weights are kept at each event of a plan, in whole units, if `asked` falls from event to event.

    The last event keeps the largest number that whole units have together, and that does not exceed what is asked for.
    The events before it keep that number and a multiple of the most common size more. So what an event prunes is a
    multiple of that size, and can be met exactly whichever units are left, as long as some of that size are.

    Args:
        units: the number of units of each size, before anything is pruned.
        floors: the least number of units that are kept of each size.
        asked: how many weights to keep at each event.
    """
    total = sum(size * number for size, number in units.items())
    spare = {size: number - floors.get(size, 0) for size, number in units.items()}
    last = total - least_reachable(spare, total - asked[-1])
    step = max(units, key=lambda size: (size * spare[size], size))  # of a size that the floors leave free
    return [max(last, last + (keep - last) // step * step) for keep in asked[:-1]] + [last]
