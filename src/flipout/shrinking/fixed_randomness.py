"""Random operations with fixed results, so that two networks can be compared that use them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

SAMPLES = {
    *("rand", "rand_like", "randn", "randn_like", "normal", "normal_functional", "normal_", "uniform", "uniform_"),
    *("exponential", "exponential_", "log_normal_", "cauchy_", "geometric_"),
}
"""Operations that fill a tensor with random numbers. All of them become 1/2, whatever the shape of the tensor."""


class _FixedResults(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dropout keeps everything, a coin shows its probability, and a sample is 1/2."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **options)
        torch.manual_seed(0)  # for what is not known: the numbers depend on the shape alone
        result, name = func(*args, **options), func.overloadpacket.__name__
        if name == "native_dropout":
            return args[0].clone(), torch.ones_like(result[1])
        if name in ("bernoulli", "bernoulli_"):
            chance = args[1] if len(args) > 1 else options.get("p", args[0] if name == "bernoulli" else 0.5)
            return result.copy_(chance) if isinstance(chance, Tensor) else result.fill_(chance)
        return result.fill_(0.5) if name in SAMPLES else result


@contextmanager
def fixed_randomness(seed: int, inputs: Sequence[Tensor]) -> Iterator[None]:
    """Nothing that runs inside is random, as far as that is known. The random numbers outside are not touched."""
    before = random.getstate()
    with torch.random.fork_rng(devices={each.device for each in inputs if each.is_cuda}):
        torch.manual_seed(seed)
        random.seed(0)
        try:
            with _FixedResults():  # type: ignore[no-untyped-call]
                yield
        finally:
            random.setstate(before)
