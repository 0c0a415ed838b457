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
    "a dict": ({"images": 1}, "dict"),
    "three values": (good()[:3], "3 values"),
    "an array": (changed(1, np.array([0, 1] * 3)), r"ndarray: use torch\.as_tensor"),
    "float labels": (changed(1, torch.tensor([0.0, 1] * 3)), r"training labels .*float32.*labels\.long"),
    "float test labels": (changed(3, torch.tensor([0.0, 1] * 2)), "test labels .*float32"),
    "complex labels": (changed(1, torch.zeros(6, dtype=torch.complex64)), "complex64"),
    "one-hot": (changed(1, torch.eye(2).repeat(3, 1)), r"\(6, 2\).*one-hot.*labels\.argmax\(1\)"),
    "one-hot integers": (changed(3, torch.eye(2).long().repeat(2, 1)), r"test labels .*labels\.argmax\(1\)"),
    "a column": (changed(1, torch.tensor([[0], [1]] * 3)), r"\(6, 1\).*labels\.flatten\(\)"),
    "a scalar label": (changed(1, torch.tensor(1)), r"training labels .*shape \(\)"),
    "too few labels": (changed(1, torch.tensor([0, 1])), "training labels .* 2, for 6 images"),
    "negative": (changed(1, torch.tensor([-1, 1] * 3)), "smallest label .* -1"),
    "huge": (changed(3, torch.tensor([0, 1, 1, 2**40])), r"largest label .*1099511627776.*torch\.unique"),
    "one class": (changed(1, torch.full((6,), 3)), "all training labels .* 3"),
    "integers": (changed(0, torch.ones(6, 1, 4, 4).long()), "training images .*int64"),
    "bytes and floats": (changed(0, torch.ones(6, 1, 4, 4, dtype=torch.uint8)), "images .*uint8.*float32"),
    "halves and floats": (changed(2, good()[2].half()), "images .*float32.*float16"),
    "NaN": (changed(0, good()[0].index_fill(0, torch.tensor([4]), torch.nan)), "training images .*image 4"),
    "infinity": (changed(2, good()[2] / 0), "test images .*image 0"),
    "another size": (changed(2, torch.rand(4, 1, 5, 4)), r"\(1, 4, 4\).*\(1, 5, 4\)"),
    "no channels": (changed(0, torch.rand(6, 0, 4, 4)), r"training images .*\(6, 0, 4, 4\)"),
    "empty": ((torch.rand(0, 1, 4, 4), torch.tensor([]).long(), *good()[2:]), "no training images"),
    "too few classes": (Data("own", *good(), classes=1), "classes=1"),
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
    with pytest.warns(UserWarning, match=r"scaled in the same way"):
        load_returned(changed(2, torch.rand(4, 1, 4, 4) * 255))


def test_a_function_with_an_argument() -> None:
    with pytest.raises(LabError, match=r"needs_a_path .*'path'"):
        load(f"{__name__}:needs_a_path")


def needs_a_path(path: str) -> None: ...


def test_an_empty_test_set_is_accepted_with_validate_only() -> None:
    values = good()
    data = load_returned((*values[:2], values[2][:0], values[3][:0]))
    with pytest.raises(LabError, match=r"no test images.*--validate"):
        prepare(data, torch.device("cpu"), validate=False)
    assert [len(part) for part in prepare(data, torch.device("cpu"), validate=True)] == [5, 1]


def test_test_images_of_another_size_are_found_before_training(tmp_path: Any) -> None:
    value = changed(2, torch.rand(4, 1, 5, 4))
    RETURNED.append(lambda: value)
    with pytest.raises(LabError, match="test images"):
        train(make_settings(data=NAME, model="mlp", epochs=2), tmp_path)
    assert not (tmp_path / "metrics.jsonl").exists()
