"""Networks in int8: against integers by hand, batches, layers, and refusals."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from sslbench.backbones import int8
from sslbench.backbones.backbone import Backbone, Kind
from sslbench.backbones.build import build
from sslbench.backbones.int8 import _sums_are_exact
from sslbench.backbones.layers import resolve_layers
from sslbench.backbones.speed import prepare
from sslbench.errors import BackboneError, UsageError
from sslbench.preprocessing import Preprocessing

CPU = torch.device("cpu")
NARROW = "resnet_basic_1-1-1-1w0.25"
IMAGES = torch.rand(24, 3, 32, 32, generator=torch.Generator().manual_seed(1)) * 2 - 1
needs_exact_sums = pytest.mark.skipif(not _sums_are_exact(), reason="sums of 8-bit products overflow on this processor")


def users(module):
    module.eval().requires_grad_(False)
    return Backbone("mine:net", Kind(users=True), module, Preprocessing(None, (32, 32)), {}, "output")


def encoders(backbone, layers=()):
    """The encoder in int8, and the one in fp32."""
    backbone = dataclasses.replace(backbone, calibration=IMAGES)
    chosen = resolve_layers(backbone, layers)
    return [prepare(backbone, chosen, device=CPU, precision=precision) for precision in ("int8", "fp32")]


def rounded_by_hand(x, low, high):
    """Numbers of 0 to 255 that stand for x, their unit, and the number that stands for 0."""
    low, high = min(low, 0.0), max(high, 0.0)
    unit = np.float32((high - low) / 255)
    zero = np.rint(-low / unit)
    return np.clip(np.rint(x / unit) + zero, 0, 255), unit, zero


@needs_exact_sums
def test_a_linear_layer_is_the_sum_of_integers():
    torch.manual_seed(0)
    layer = nn.Linear(3 * 32 * 32, 5)
    (int8_encoder, _) = encoders(users(nn.Sequential(nn.Flatten(), layer)))
    found = int8_encoder(IMAGES)["output"].numpy()
    x = IMAGES.flatten(1).numpy().astype(np.float64)
    numbers, unit, zero = rounded_by_hand(x, x.min(), x.max())
    weight = layer.weight.numpy().astype(np.float64)
    units = np.abs(weight).max(axis=1, keepdims=True) / 127  # a unit per output
    rounded = np.clip(np.rint(weight / units), -127, 127)
    wanted = (numbers - zero) @ rounded.T * unit * units.T + layer.bias.numpy()
    exact = x @ weight.T + layer.bias.numpy()
    # What comes out is rounded as well, within its range on the images of the calibration, which are these.
    outputs, unit, zero = rounded_by_hand(wanted, exact.min(), exact.max())
    steps = np.rint((found - (outputs - zero) * unit) / unit)
    # A sum that lies between two integers may be rounded to either.
    assert np.abs(steps).max() <= 1 and (steps == 0).mean() > 0.9
    assert np.abs(found - (outputs - zero + steps) * unit).max() < 1e-3 * unit


@needs_exact_sums
@pytest.mark.parametrize("name", [NARROW, "timm:vit_tiny_patch16_224,img_size=32,depth=2"])
def test_features_are_near_those_of_fp32_and_independent_of_the_batch(name):
    torch.manual_seed(0)
    int8_encoder, fp32 = encoders(build(name))
    found, wanted = (encode(IMAGES) for encode in (int8_encoder, fp32))
    for text, exact in wanted.items():
        assert found[text].shape == exact.shape and found[text].dtype == torch.float32
        assert nn.functional.cosine_similarity(found[text], exact).min() > 0.98
        assert not torch.equal(found[text], exact), "it is rounded"
    one_by_one = torch.cat([next(iter(int8_encoder(image[None]).values())) for image in IMAGES])
    assert torch.equal(one_by_one, next(iter(found.values())))


@needs_exact_sums
def test_several_layers_pools_and_mirrored_images_come_from_one_network():
    torch.manual_seed(0)
    layers = ("res3:avg", "res4:gem(3)", "res5avg")
    int8_encoder, fp32 = encoders(build(NARROW), layers)
    assert list(int8_encoder(IMAGES)) == list(fp32(IMAGES)) == list(layers)
    for found, exact in zip(int8_encoder(IMAGES).values(), fp32(IMAGES).values(), strict=True):
        assert found.shape == exact.shape and nn.functional.cosine_similarity(found, exact).min() > 0.98
    copy = int8_encoder.twin()
    assert all(torch.equal(a, b) for a, b in zip(copy(IMAGES).values(), int8_encoder(IMAGES).values(), strict=True))


@needs_exact_sums
def test_other_weights_or_other_images_for_the_ranges_give_another_network():
    torch.manual_seed(0)
    first, second = build(NARROW), build(NARROW)
    second.module.conv1.weight.mul_(torch.linspace(0.5, 2, 16)[:, None, None, None])
    narrow = dataclasses.replace(first, calibration=IMAGES / 10)
    layers = resolve_layers(first, ())
    found = [prepare(narrow, layers, device=CPU, precision="int8")(IMAGES)["res5avg"]]
    found += [encoders(backbone)[0](IMAGES)["res5avg"] for backbone in (first, second)]
    for i, j in ((0, 1), (1, 2)):
        assert not torch.equal(found[i], found[j])


@needs_exact_sums
def test_networks_with_equal_tensors_and_other_names_are_told_apart():
    """An activation is an option of timm's models that no tensor shows."""
    name = "timm:vit_tiny_patch16_224,img_size=32,depth=1"
    found = []
    for option in ("", ",act_layer=relu"):
        torch.manual_seed(0)
        found += encoders(build(name + option))[0](IMAGES).values()
    assert not torch.equal(*found)


class Uneven(nn.Module):
    def forward(self, images):
        if float(images.sum()) > 0:  # a value that a traced network cannot depend on
            return images.mean((2, 3))
        return images.amax((2, 3))


@needs_exact_sums
def test_a_network_that_cannot_be_traced_is_refused_by_name():
    with pytest.raises(BackboneError, match=r"mine:net cannot be computed in int8: ") as error:
        encoders(users(nn.Sequential(nn.Conv2d(3, 4, 3), Uneven())))
    assert "bf16 or fp32" in str(error.value)
    assert "data-dependent" in str(error.value) and "\x1b" not in str(error.value), "the reason, in plain text"


class Means(nn.Module):
    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, images):
        return images.mean(3).flatten(1)


@needs_exact_sums
def test_a_network_without_products_is_refused_and_the_libraries_print_nothing(capfd):
    with pytest.raises(BackboneError, match="nothing is rounded"):
        encoders(users(Means()))
    printed = capfd.readouterr()
    assert printed.out == printed.err == ""


@needs_exact_sums
def test_without_images_for_the_ranges_the_protocols_are_named():
    backbone = build(NARROW)
    with pytest.raises(UsageError, match="protocols on features and for extract"):
        prepare(backbone, resolve_layers(backbone, ()), device=CPU, precision="int8")


def test_other_devices_and_processors_that_overflow_are_refused(monkeypatch):
    with pytest.raises(UsageError, match="int8 computes on a processor, not on cuda"):
        int8.check_int8(torch.device("cuda"))
    monkeypatch.setattr(int8, "_sums_are_exact", lambda: False)
    with pytest.raises(UsageError, match="without overflow"):
        int8.check_int8(CPU)
