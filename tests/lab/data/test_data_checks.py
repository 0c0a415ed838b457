"""What a function of the user may return as data: anything that would train wrongly is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from flipout_lab import LabError, load, make_settings, train
from flipout_lab.data import Data
from flipout_lab.data.batches import prepare
from flipout_lab.data.data_readers import Arrays

NAME = f"{__name__}:returned"
RETURNED: list[Callable[[], Any]] = []


def returned() -> Any:
    return RETURNED[-1]()


def good() -> Arrays:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(10, 1, 4, 4, generator=generator)
    return images[:6], torch.tensor([0, 1] * 3), images[6:], torch.tensor([0, 1] * 2)


def changed(number: int, value: Any) -> Any:
    values: list[Any] = [*good()]
    values[number] = value
    return tuple(values)


def load_returned(value: Any) -> Data:
    RETURNED.append(lambda: value)
    return load(NAME)


REFUSED = {
    "a dict": ({"images": 1}, r"must return four tensors: .* it returns dict"),
    "three values": (good()[:3], r"must return four tensors: .* it returns 3 values"),
    "an array": (changed(1, np.array([0, 1] * 3)), r"one of them is of type ndarray: convert it with torch\.as_tensor"),
    "float labels": (
        changed(1, torch.tensor([0.0, 1] * 3)),
        r"the training labels of .* are float32.*labels\.long\(\)",
    ),
    "fractions": (changed(1, torch.rand(6)), r"the training labels of .* are float32; .* class numbers from 0"),
    "float test labels": (changed(3, torch.tensor([0.0, 1] * 2)), r"the test labels of .* are float32"),
    "complex labels": (changed(1, torch.zeros(6, dtype=torch.complex64)), "are complex64; return integers"),
    "one-hot": (changed(1, torch.eye(2).repeat(3, 1)), r"\(6, 2\), like one-hot labels; .*labels\.argmax\(1\)"),
    "one-hot integers": (changed(3, torch.eye(2).long().repeat(2, 1)), r"the test labels of .*labels\.argmax\(1\)"),
    "a column": (changed(1, torch.tensor([[0], [1]] * 3)), r"\(6, 1\); .*labels\.flatten\(\)"),
    "a scalar label": (changed(1, torch.tensor(1)), r"have shape \(\); return one class number per image"),
    "too few labels": (changed(1, torch.tensor([0, 1])), "returns 6 training images but 2 training labels"),
    "negative": (changed(1, torch.tensor([-1, 1] * 3)), "the smallest label of .* is -1; number the classes from 0"),
    "huge": (changed(3, torch.tensor([0, 1, 1, 2**40])), r"the largest label of .* is 1099511627776, .*torch\.unique"),
    "one class": (changed(1, torch.full((6,), 3)), "all training labels of .* are 3; return at least two classes"),
    "integers": (changed(0, torch.ones(6, 1, 4, 4).long()), "the training images of .* are int64; return bytes"),
    "bytes and floats": (
        changed(0, torch.ones(6, 1, 4, 4, dtype=torch.uint8)),
        "training images of .* are uint8, but the test images are float32: .* same dtype",
    ),
    "halves and floats": (changed(2, good()[2].half()), "are float32, but the test images are float16"),
    "NaN": (changed(0, good()[0].index_fill(0, torch.tensor([4]), torch.nan)), "NaN or infinity, first in image 4"),
    "infinity": (changed(2, good()[2] / 0), "the test images of .* contain NaN or infinity, first in image 0"),
    "too large": (changed(0, good()[0].double() * 1e300), "are float64, but the test images are float32"),
    "another size": (
        changed(2, torch.rand(4, 1, 5, 4)),
        "images of .* are 1 x 4 x 4, but the test images are 1 x 5 x 4",
    ),
    "no channels": (
        changed(0, torch.rand(6, 0, 4, 4)),
        r"\(6, 0, 4, 4\); expected \(number, channels, height, width\)",
    ),
    "empty": (
        (torch.rand(0, 1, 4, 4), torch.tensor([]).long(), *good()[2:]),
        "returns no training images; return four tensors",
    ),
    "too few classes": (Data("own", *good(), classes=1), "returns classes=1, but its largest label is 1"),
    "one-hot in Data": (
        replace(Data("own", *good(), classes=2), train_labels=torch.eye(2).repeat(3, 1)),
        r"labels\.argmax\(1\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_name(case: str) -> None:
    value, message = REFUSED[case]
    with pytest.raises(LabError, match=message) as caught:
        load_returned(value)
    assert NAME in str(caught.value)


def test_accepted() -> None:
    for kind in (torch.uint8, torch.int32, torch.int64, torch.bool):
        assert load_returned(changed(1, torch.tensor([0, 1] * 3).to(kind))).train_labels.dtype == torch.int64
    assert load_returned([*good()]).classes == 2  # a list is as good as a tuple
    assert load_returned(changed(1, torch.tensor([2, 7] * 3))).classes == 8
    assert load_returned(changed(3, torch.tensor([2, 7] * 2))).classes == 8
    assert load_returned(Data("own", *good(), classes=5, flip=True, crop=1)).classes == 5


def test_floats_of_another_scale_give_a_warning() -> None:
    with pytest.warns(
        UserWarning, match=r"value is 0\.\d+ in the training images of .*are both scaled in the same way"
    ):
        load_returned(changed(2, torch.rand(4, 1, 4, 4) * 255))


def test_a_function_with_an_argument() -> None:
    with pytest.raises(LabError, match=r"needs_a_path is called without arguments .*'path'.*; give every argument a"):
        load(f"{__name__}:needs_a_path")


def needs_a_path(path: str) -> None: ...


def test_an_empty_test_set_is_accepted_with_validate_only() -> None:
    values = good()
    data = load_returned((*values[:2], values[2][:0], values[3][:0]))
    with pytest.raises(LabError, match=r"has no test images; add some, or use --validate"):
        prepare(data, torch.device("cpu"), validate=False)
    assert [len(part) for part in prepare(data, torch.device("cpu"), validate=True)] == [5, 1]


def test_test_images_of_another_size_are_found_before_training(tmp_path: Any) -> None:
    value = changed(2, torch.rand(4, 1, 5, 4))
    RETURNED.append(lambda: value)
    with pytest.raises(LabError, match="but the test images are 1 x 5 x 4"):
        train(make_settings(data=NAME, model="mlp", epochs=2), tmp_path)
    assert not (tmp_path / "metrics.jsonl").exists()
