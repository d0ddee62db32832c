"""Prepared backbones: the same features, from a copy; the original is never touched."""

import logging

import pytest
import torch
from timm.layers.norm_act import BatchNormAct2d
from torch import nn

from sslbench.backbones.backbone import Backbone, Kind, probe_images
from sslbench.backbones.build import build
from sslbench.backbones.layers import forward_layers, resolve_layers
from sslbench.backbones.speed import folded, prepare
from sslbench.errors import BackboneError
from sslbench.preprocessing import Preprocessing

CPU = torch.device("cpu")
IMAGES = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def shake(module):
    """Statistics and scales as after training: of a fresh network, folding nothing would look right too."""
    generator = torch.Generator().manual_seed(0)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.copy_(torch.randn(part.num_features, generator=generator) * 0.2)
            part.running_var.copy_(torch.rand(part.num_features, generator=generator) + 0.5)
            if part.affine:
                part.weight.data.copy_(torch.rand(part.num_features, generator=generator) + 0.5)
                part.bias.data.copy_(torch.randn(part.num_features, generator=generator) * 0.2)
    return module


def users(module):
    shake(module).eval().requires_grad_(False)
    return Backbone(
        "mine:net", Kind(users=True), module, Preprocessing(None, (32, 32)), {}, "output", {"builder": "module"}
    )


def plain(backbone, layers, images=IMAGES):
    with torch.inference_mode():
        return forward_layers(backbone.module, images, layers)


def norms(module):
    return sum(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())


def both(backbone, *specs):
    """Features with and without preparation, and how many BatchNorms are left after folding."""
    layers = resolve_layers(backbone, specs)
    left = norms(folded(backbone.module, layers, probe_images(backbone.preprocessing)))
    return prepare(backbone, layers, device=CPU)(IMAGES), plain(backbone, layers), left


def assert_same(got, wanted):
    assert got.keys() == wanted.keys()
    for text, value in wanted.items():
        torch.testing.assert_close(got[text], value, rtol=1e-4, atol=1e-5 * float(value.abs().max()))


@pytest.mark.parametrize("name", ["resnet18w0.25", "resnet50w0.125", "resnext50_32x4dw0.5"])
def test_a_resnet_has_every_batchnorm_folded_and_gives_the_same_features(name):
    backbone = build(name)
    shake(backbone.module)
    got, wanted, left = both(backbone, "conv1", "res2", "res3:flatten", "res4", "res5", "res5avg", "layer1.0.bn1")
    assert left == 0
    assert_same(got, wanted)


def test_a_tapped_convolution_is_not_folded():
    backbone = build("resnet18w0.25")
    shake(backbone.module)
    got, wanted, left = both(backbone, "layer1.0.conv1", "layer2.0.bn1@input", "res5avg")
    assert left == 2
    assert_same(got, wanted)


class Odd(nn.Module):
    """Convolutions that must not be folded: used twice, changed in place; and two that may be."""

    def __init__(self):
        super().__init__()
        self.twice = nn.Conv2d(3, 3, 3, padding=1)
        self.twice_norm = nn.BatchNorm2d(3)
        self.changed = nn.Conv2d(3, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.changed_norm = nn.BatchNorm2d(4)
        self.good = nn.Sequential(nn.Conv2d(4, 4, 3, bias=True))
        self.good_norm = nn.BatchNorm2d(4, affine=False)
        self.act = nn.Conv2d(4, 6, 1, bias=False)
        self.act_norm = BatchNormAct2d(6)

    def forward(self, x):
        x = self.twice_norm(self.twice(self.twice(x)))
        x = self.changed_norm(self.relu(self.changed(x)))
        return self.act_norm(self.act(self.good_norm(self.good(x))))


def test_only_pairs_that_nothing_stands_between_are_folded():
    backbone = users(Odd())
    got, wanted, left = both(backbone, "output:flatten")
    assert left == 2, "twice_norm and changed_norm stay, good_norm and act_norm go"
    assert_same(got, wanted)
    assert both(backbone, "good")[2] == 3, "a tapped container whose output is the convolution's"


class ReadElsewhere(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x):
        x = self.conv(x)
        return self.norm(x) + x


class AsksTheNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x):
        return self.norm(self.conv(x)) / self.norm.num_features


@pytest.mark.parametrize(("net", "reason"), [(ReadElsewhere, "would change by"), (AsksTheNorm, "does not run without")])
def test_folding_that_goes_wrong_is_noticed_and_undone(net, reason, caplog):
    with caplog.at_level(logging.INFO, logger="sslbench"):
        got, wanted, left = both(users(net()), "output")
    assert reason in caplog.text
    assert left == 1
    assert_same(got, wanted)


class Restless(nn.Module):
    """Counts its calls, has dropout and batch statistics."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.ReLU(inplace=True))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.body(x).mean((2, 3))


def test_nothing_touches_the_original():
    backbone = users(Restless())
    before = {key: value.clone() for key, value in backbone.module.state_dict().items()}
    layers = resolve_layers(backbone, ["output", "body.0"])
    encode = prepare(backbone, layers, device=CPU)
    first, second = encode(IMAGES), encode(IMAGES)
    prepare(backbone, layers, device=CPU, precision="bf16")(IMAGES)
    assert all(torch.equal(first[key], second[key]) for key in first), "dropout must be off"
    after = backbone.module.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert type(backbone.module.body[1]) is nn.BatchNorm2d
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in backbone.module.modules())


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("name", ["resnet18w0.25", "timm:test_vit"])
def test_reduced_precision_is_near_and_comes_out_as_float32(name, precision):
    backbone = build(name)
    shake(backbone.module)
    layers = resolve_layers(backbone, [])
    images = probe_images(backbone.preprocessing, 2)
    encode = prepare(backbone, layers, device=CPU, precision=precision)
    [got], [wanted] = encode(images).values(), plain(backbone, layers, images).values()
    assert got.dtype == torch.float32
    assert float((got - wanted).abs().max() / wanted.abs().max()) < {"bf16": 0.05, "fp16": 0.01}[precision]
    assert not torch.equal(got, wanted)


def test_the_batch_size_does_not_matter():
    backbone = build("resnet18w0.25")
    encode = prepare(backbone, resolve_layers(backbone, ["res5avg", "res4:avg(2,1)"]), device=CPU)
    images = torch.randn(19, 3, 64, 64)
    whole = encode(images)
    for text, value in whole.items():
        assert len(value) == 19
        single = torch.cat([encode(image[None])[text] for image in images])
        torch.testing.assert_close(single, value, rtol=1e-5, atol=1e-5)


class Unready(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x):
        return self.fc(x.float().mean((2, 3)))


def test_a_backbone_that_cannot_do_reduced_precision_says_so():
    backbone = users(Unready())
    encode = prepare(backbone, resolve_layers(backbone, ["output"]), device=CPU, precision="bf16")
    with pytest.raises(BackboneError, match=r"(?s)torch.bfloat16.*use precision fp32"):
        encode(IMAGES)


def test_a_backbone_that_cannot_be_copied_says_so():
    net = Unready()
    net.cache = net.fc.weight * 2
    with pytest.raises(BackboneError, match=r"cannot be copied"):
        prepare(users(net), (), device=CPU)
