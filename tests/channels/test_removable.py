"""Which channels a network can lose, by its masks."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from flipout.channels.removable import Remainder, RemovableChannels


def remainder(model: nn.Module, example: Tensor, keeps_weights: bool = False, /, **masks: Tensor) -> Remainder:
    """What is left under masks of some weights; a double underscore stands for a dot."""
    whole = {f"{key.replace('__', '.')}.weight": (mask, (None,) * mask.ndim) for key, mask in masks.items()}
    return RemovableChannels(model, (example,)).remainder(whole, keeps_weights=keeps_weights)


def kept(found: Remainder, name: str, dimension: int = 0) -> list[int] | None:
    """The indices that are left of a tensor; None for all."""
    index = found.tensors.get(name, (None, None, None, None))[dimension]
    return None if index is None else index.tolist()


def columns(outputs: int, inputs: int, *read: int) -> Tensor:
    """The mask of a matrix of which some columns are read."""
    mask = torch.zeros(outputs, inputs, dtype=torch.bool)
    mask[:, list(read)] = True
    return mask


class Named(nn.Module):
    """Two layers, with something between them."""

    def __init__(self, between: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.between, self.last = nn.Linear(5, 4), between or nn.ReLU(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.first(x)))  # type: ignore[no-any-return]


def test_a_channel_that_nothing_reads_goes_with_all_that_produces_it() -> None:
    found = remainder(Named(nn.BatchNorm1d(4)), torch.randn(2, 5), last=columns(3, 4, 1, 3))
    assert kept(found, "first.weight") == kept(found, "first.bias") == [1, 3]
    assert kept(found, "last.weight", 1) == [1, 3]
    assert kept(found, "last.weight") is None
    for part in ("weight", "bias", "running_mean", "running_var"):
        assert kept(found, f"between.{part}") == [1, 3]
    assert "between.num_batches_tracked" not in found.tensors
    assert found.multiply_adds == (20 + 12, 10 + 6)


def test_a_channel_stays_with_the_weights_that_are_kept_for_later() -> None:
    """Nothing reads the first two of four channels. One of them is still produced by a weight that is kept."""
    first = torch.zeros(4, 5, dtype=torch.bool)
    first[0, 2] = first[2, 1] = first[3, 1] = True
    masks = {"first": first, "last": columns(3, 4, 2, 3)}
    for keeps_weights, left in ((False, [2, 3]), (True, [0, 2, 3])):
        found = remainder(Named(), torch.randn(2, 5), keeps_weights, **masks)
        assert kept(found, "first.weight") == kept(found, "last.weight", 1) == left


def test_a_channel_without_inputs_stays_because_its_bias_is_trained() -> None:
    mask = torch.ones(4, 5, dtype=torch.bool)
    mask[2] = False
    assert not remainder(Named(), torch.randn(2, 5), first=mask).tensors


def test_what_feeds_only_dead_channels_is_dead() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    example, masks = torch.randn(2, 5), {"2": torch.eye(4, dtype=torch.bool), "4": columns(2, 4, 3)}
    found = remainder(model, example, **masks)
    assert kept(found, "0.weight") == kept(found, "2.weight", 1) == kept(found, "2.weight") == [3]


def test_one_channel_stays_if_none_is_read() -> None:
    found = remainder(Named(), torch.randn(2, 5), last=columns(3, 4))
    assert kept(found, "first.weight") == kept(found, "last.weight", 1) == [0]


@pytest.mark.parametrize("between", [nn.LayerNorm(4), nn.Softmax(1), nn.GroupNorm(1, 4)])
def test_an_operation_that_mixes_channels_keeps_all(between: nn.Module) -> None:
    assert not remainder(Named(between), torch.randn(2, 5), last=columns(3, 4, 1)).tensors


class Attention(nn.Module):
    """Four heads, of a number that the module states."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.attend, self.out = 4, nn.Linear(6, 96), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.attend(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
        return self.out(mixed)  # type: ignore[no-any-return]


def test_heads_go_with_the_number_that_the_module_states() -> None:
    model, example = Attention(), torch.randn(2, 5, 6)
    channels = RemovableChannels(model, (example,))
    found = channels.remainder({"out.weight": (columns(6, 32, *range(8, 16), 31), (None, None))})
    assert kept(found, "out.weight", 1) == [*range(8, 16), *range(24, 32)]
    assert kept(found, "attend.bias") == [
        32 * part + place for part in range(3) for place in kept(found, "out.weight", 1) or ()
    ]
    assert channels.attributes(model, found.tensors) == {"": {"heads": 2}}


class Sides(NamedTuple):
    left: int
    right: int


class Halves(nn.Module):
    """Cuts its channels into halves, of sizes that it may state, and multiplies one with a power of the other."""

    def __init__(self, power: int, sizes: list[int] | Sides | None = None) -> None:
        super().__init__()
        self.power, self.sizes = power, sizes

    def forward(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1) if self.sizes is None else x.split(list(self.sizes), -1)
        return first * second**self.power


def test_a_number_that_is_a_size_by_chance_stays() -> None:
    """In the same module as sizes that change, and in another one."""
    halves = Halves(2, [2, 2]), Halves(5), Halves(3, [4, 4])
    model = nn.Sequential(
        nn.Linear(6, 4), halves[0], nn.Linear(2, 10), halves[1], nn.Linear(5, 8), halves[2], nn.Linear(4, 3)
    ).double()
    channels = RemovableChannels(model, (torch.randn(2, 6, dtype=torch.float64),))
    masks = {"2.weight": columns(10, 2, 1), "4.weight": columns(8, 5, 0, 3), "6.weight": columns(3, 4, 1, 2, 3)}
    found = channels.remainder({name: (mask, (None, None)) for name, mask in masks.items()})
    assert not channels.problem
    assert kept(found, "0.bias") == [1, 3]
    assert kept(found, "2.bias") == [0, 3, 5, 8]
    assert kept(found, "4.bias") == [1, 2, 3, 5, 6, 7]
    assert channels.attributes(model, found.tensors) == {"1": {"sizes": [1, 1]}, "5": {"sizes": [3, 3]}}


def test_sizes_in_a_named_tuple() -> None:
    model = nn.Sequential(nn.Linear(6, 4), Halves(2, Sides(2, 2)), nn.Linear(2, 3)).double()
    channels = RemovableChannels(model, (torch.randn(2, 6, dtype=torch.float64),))
    found = channels.remainder({"2.weight": (columns(3, 2, 1), (None, None))})
    assert kept(found, "0.bias") == [1, 3]
    assert channels.attributes(model, found.tensors) == {"1": {"sizes": Sides(1, 1)}}


class Sum(nn.Module):
    """Two branches that are added; the first is also read on its own."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(5, 4), nn.Linear(5, 4)
        self.alone, self.both = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        left = self.left(x)
        return self.alone(left) + self.both(left + self.right(x))  # type: ignore[no-any-return]


def test_tensors_that_are_added_lose_the_same_channels() -> None:
    found = remainder(Sum(), torch.randn(2, 5), alone=columns(2, 4, 0), both=columns(2, 4, 2))
    names = ("left.weight", "right.weight", "left.bias", "right.bias")
    assert [kept(found, name) for name in names] == [[0, 2]] * 4
    assert kept(found, "alone.weight", 1) == kept(found, "both.weight", 1) == [0, 2]


class Viewing(nn.Module):
    """A convolution that is flattened by view()."""

    def __init__(self, *, fixed: bool) -> None:
        super().__init__()
        self.conv, self.head, self.fixed = nn.Conv2d(1, 3, 3), nn.Linear(12, 2), fixed

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.head(x.view(-1, 12) if self.fixed else x.view(x.size(0), -1))  # type: ignore[no-any-return]


def test_a_channel_of_a_flattened_tensor_goes_with_all_its_positions() -> None:
    found = remainder(Viewing(fixed=False), torch.randn(2, 1, 4, 4), head=columns(2, 12, 0, 9))
    assert kept(found, "conv.weight") == [0, 2]
    assert kept(found, "head.weight", 1) == [0, 1, 2, 3, 8, 9, 10, 11]


def test_a_size_in_the_code_keeps_all_channels() -> None:
    assert not remainder(Viewing(fixed=True), torch.randn(2, 1, 4, 4), head=columns(2, 12, 0)).tensors


def test_of_a_layer_with_groups_whole_groups_go() -> None:
    model = nn.Sequential(nn.Conv2d(2, 6, 1), nn.Conv2d(6, 9, 1, groups=3), nn.Conv2d(9, 2, 1))
    mask = torch.zeros(2, 9, 1, 1, dtype=torch.bool)
    mask[0, 4] = True
    found = remainder(model, torch.randn(2, 2, 3, 3), **{"2": mask})
    assert kept(found, "0.weight") == [2, 3]
    assert kept(found, "1.weight") == kept(found, "2.weight", 1) == [3, 4, 5]
    assert kept(found, "1.weight", 1) is None
