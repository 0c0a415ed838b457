"""The networks, their published sizes, and networks of the user."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from flipout_lab import LabError, build
from flipout_lab.data import DATA
from flipout_lab.models import MODELS
from flipout_lab.models.model_catalogue import model_title
from flipout_lab.runs.run_views import prunable_weights

PUBLISHED = {
    # LeCun et al. (1998); counted e.g. in Han et al. (2015), Table 3: 267k.
    "lenet-300-100": 266_610,
    # Caffe's LeNet; Han et al. (2015), Table 4: 431k.
    "lenet-5": 431_080,
    # The CIFAR-10 networks of github.com/kuangliu/pytorch-cifar, which the paper trains.
    "resnet18": 11_173_962,
    "vgg19": 20_040_522,
    # torchvision.models.densenet121 has 7,978,856 with 1,000 classes: 990 classes of 1,025 numbers fewer.
    "densenet121": 7_978_856 - 990 * 1_025,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_against_published_counts(name: str) -> None:
    info = DATA[MODELS[name].data]
    model = build(name, info.shape, info.classes)
    assert sum(parameter.numel() for parameter in model.parameters()) == PUBLISHED[name]


def test_conv_6_has_the_published_convolutions() -> None:
    """Frankle and Carbin (2019), Figure 2: 1.1 million weights in the convolutions. (It says 1.7 million in all, which
    the layers that it lists do not add up to: the first dense layer alone has 4,096 x 256 of them.)"""
    model = build("conv-6")
    convolutions = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Conv2d))
    assert convolutions == 1_144_512
    assert prunable_weights(model) == 1_144_512 + 4096 * 256 + 256 * 256 + 256 * 10


def test_resnet10_with_a_quarter_of_its_channels() -> None:
    """Per stage one block: two convolutions of 3 x 3, and one of 1 x 1 in the shortcut where the channels change."""
    blocks = 2 * 16 * 16 * 9 + sum(n * 2 * n * 9 + 2 * n * 2 * n * 9 + n * 2 * n for n in (16, 32, 64))
    model = build("resnet10", width=0.25)
    assert prunable_weights(model) == 3 * 16 * 9 + blocks + 128 * 10 == 307_376
    sizes = []
    for block in model.blocks:  # type: ignore[union-attr]
        block.register_forward_hook(lambda _module, _inputs, output: sizes.append(output.shape[1:]))
    model(torch.randn(2, 3, 32, 32))
    assert sizes == [(16, 16, 16), (32, 8, 8), (64, 4, 4), (128, 2, 2)]


@pytest.mark.parametrize("name", MODELS)
def test_width_scales_and_everything_runs(name: str) -> None:
    shape = (3, 64, 64) if name == "densenet121" else (3, 32, 32)
    sizes = []
    for width in (0.1, 0.25):
        model = build(name, shape, 7, width)
        assert model.training
        assert model.eval()(torch.randn(2, *shape)).shape == (2, 7)
        sizes.append(prunable_weights(model))
    assert sizes[0] < sizes[1]
    assert build(name, shape, 7, 1e-9) is not None


def test_every_record_has_a_title() -> None:
    assert model_title("lenet-5") == "LeNet-5"
    assert model_title("timm:resnet18") == "timm:resnet18"
    assert len({info.title for info in MODELS.values()}) == len(MODELS)
    assert all(info.data in DATA for info in MODELS.values())


@pytest.mark.parametrize("name", ["lenet-5", "vgg19"])
def test_images_that_are_too_small(name: str) -> None:
    with pytest.raises(LabError, match=f"{name} .*1 x 8 x 8"):
        build(name, (1, 8, 8))


def own(shape: tuple[int, int, int], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))


def no_module() -> int:
    return 1


def test_a_network_of_the_user() -> None:
    model = build(f"{__name__}:own", (1, 4, 4), 3)
    assert model(torch.zeros(1, 1, 4, 4)).shape == (1, 3)
    with pytest.raises(LabError, match="has no parameter width"):
        build(f"{__name__}:own", (1, 4, 4), 3, width=2.0)
    with pytest.raises(LabError, match=r"type int"):
        build(f"{__name__}:no_module", (1, 4, 4), 3)


def test_invalid_names_and_widths() -> None:
    with pytest.raises(LabError, match="did you mean 'resnet18'"):
        build("resnet81")
    with pytest.raises(LabError, match="width is 0"):
        build("mlp", width=0)
    with pytest.raises(LabError, match=r"timm cannot be imported|timm has no network"):
        build("timm:no_such_network")


def test_a_network_that_does_not_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 131072000000 bytes")

    monkeypatch.setitem(MODELS, "mlp", replace(MODELS["mlp"], make=full))  # type: ignore[arg-type]
    with pytest.raises(LabError, match="--width 1000"):
        build("mlp", width=1000)
