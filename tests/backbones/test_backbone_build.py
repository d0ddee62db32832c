"""Names to backbones: what exists, what a user brings, what is refused; random weights are a function of the seed."""

import random
import textwrap

import numpy as np
import pytest
import timm
import torch
from timm.models import _registry

from sslbench.backbones.architectures import RESNETS, refuse_unknown_backbone, timm_names
from sslbench.backbones.build import build, family_of, laid_out
from sslbench.backbones.layers import forward_layers, resolve_layers
from sslbench.errors import BackboneError, UsageError
from sslbench.preprocessing import Preprocessing

NETS = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.fc = nn.Linear(4, 10)

        def forward(self, x):
            return self.fc(self.conv(x).mean((2, 3)))

    def net():
        return Net()

    def small():
        made = Net()
        made.preprocessing = {"resize": None, "crop": [32, 32], "mean": [0.5, 0.5, 0.5]}
        return made

    def mistyped():
        made = Net()
        made.preprocessing = {"crops": 32}
        return made

    def needs_arguments(width):
        return Net()

    def fails():
        raise KeyError("no such block")

    def returns_text():
        return "resnet50"

    number = 3
    instance = Net()
"""


@pytest.fixture
def nets(tmp_path, monkeypatch):
    """The name of a module of the user's in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"nets_{abs(hash(str(tmp_path))):x}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(NETS))
    return name


@pytest.mark.parametrize("name", ["resnet18", "resnet18w0.25", "timm:test_vit", "test_resnet", "pixels", "pixels:8"])
def test_a_backbone_is_frozen_and_in_eval_mode(name):
    module = build(name).module
    assert not any(part.training for part in module.modules())
    assert not any(parameter.requires_grad for parameter in module.parameters())


@pytest.mark.parametrize("name", ["resnet18w0.25", "timm:test_vit"])
def test_random_weights_depend_on_the_seed_alone(name):
    torch.manual_seed(3)
    first = build(name, seed=1).module.state_dict()
    torch.rand(5)
    again, other = build(name, seed=1).module.state_dict(), build(name, seed=2).module.state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", ["resnet18w0.125", "timm:test_vit", "timm:test_convnext"])
def test_a_network_is_laid_out_with_the_names_and_shapes_of_one_that_is_built(name):
    with laid_out():
        tensors = build(name).module.state_dict()
    assert all(tensor.is_meta for tensor in tensors.values())
    wanted = build(name).module.state_dict()
    assert {key: tensor.shape for key, tensor in tensors.items()} == {key: t.shape for key, t in wanted.items()}
    assert torch.ones(2).mul_(3).tolist() == [3, 3], "afterwards tensors have values again"


def test_building_leaves_the_global_random_states_alone():
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    states = torch.random.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    for name in ("resnet18w0.25", "timm:test_vit", "pixels"):
        build(name, seed=9)
    assert torch.equal(states[0], torch.random.get_rng_state())
    assert np.array_equal(states[1], np.random.get_state()[1])
    assert states[2] == random.getstate()


def test_names_lead_where_they_say():
    assert "last_stride" in build("resnet18w0.25").kind.options
    assert build("timm:resnet18").kind.tags
    assert build("test_vit").name == "timm:test_vit"
    assert build("resnet18").preprocessing == Preprocessing(origin="torchvision default")


def test_pixels_are_the_image_itself():
    backbone = build("pixels:4")
    assert backbone.preprocessing.resize == (4, 4)
    assert backbone.preprocessing.crop is None
    assert backbone.preprocessing.mean == (0, 0, 0)
    assert backbone.preprocessing.std == (1, 1, 1)
    images = torch.rand(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    features = forward_layers(backbone.module, images, resolve_layers(backbone, []))
    assert torch.equal(features["pixels"], images.reshape(2, 48))
    assert build("pixels").preprocessing.resize == (32, 32)
    assert build("pixels:native").preprocessing.resize is None


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("resnet5O", "Did you mean .*'resnet50'"),
        ("vit_smal_patch14_dinov2", "'vit_small_patch14_dinov2'"),
        ("timm:convnext_tin", "Did you mean .*'convnext_tiny'"),
        ("timm:resnet18.a1_in2k", "no tag 'a1_in2k'.*\n.*'a1_in1k'"),
        ("pixels:big", "pixels:32"),
        ("pixels:0", "pixels:32"),
        ("hf-hub:timm/resnet18.a1_in1k", "Nothing is downloaded"),
        ("timm:", "timm has no model"),
        ("no_such_module_here:net", "no Python module 'no_such_module_here'"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_ones(name, says):
    with pytest.raises(UsageError, match=f"(?s){says}"):
        build(name)


def test_a_users_module(nets):
    backbone = build(f"{nets}:net")
    assert backbone.name == f"{nets}:net"
    assert "ImageNet default" in backbone.preprocessing.origin
    assert backbone.default_layer == "output"
    assert len(backbone.identity["source"]) == 32


def test_a_users_preprocessing(nets):
    given = build(f"{nets}:small").preprocessing
    assert (given.resize, given.crop, given.mean) == (None, (32, 32), (0.5, 0.5, 0.5))
    assert given.origin == f"{nets}:small.preprocessing"
    with pytest.raises(UsageError, match=r"unknown key 'crops'(?s:.)*'crop'"):
        build(f"{nets}:mistyped")


def test_changed_source_changes_the_identity(nets, tmp_path):
    before = build(f"{nets}:net").identity
    file = tmp_path / f"{nets}.py"
    file.write_text(file.read_text().replace("mean((2, 3))", "amax((2, 3))"))
    assert build(f"{nets}:net").identity != before


@pytest.mark.parametrize(
    ("attribute", "error", "says"),
    [
        ("fails", BackboneError, "failed at .*nets_.*, line .*KeyError: 'no such block'"),
        ("needs_arguments", BackboneError, "TypeError.*missing 1 required positional argument: 'width'"),
        ("returns_text", BackboneError, "returned a str, not a torch.nn.Module"),
        ("number", UsageError, "is a int, not a function"),
        ("instance", UsageError, "is a module, not a function"),
        ("nett", UsageError, "Did you mean 'net'"),
    ],
)
def test_a_user_callable_that_does_not_work_is_named(nets, attribute, error, says):
    with pytest.raises(error, match=f"(?s){says}"):
        build(f"{nets}:{attribute}")


def test_names_of_timm_are_those_of_its_registry():
    assert timm_names() == set(timm.list_models())


def test_every_name_of_a_family_is_accepted():
    names = [*timm.list_models(), *_registry._deprecated_models, *RESNETS, "alexnet_jigsaw", "pixels:8"]
    names += ["resnet18w0.25_cifar,in_chans=4", "resnet_bottleneck_2-2-2-2", "timm:vit_small_patch16_224.dino"]
    names += ["vit_small_patch16_224,img_size=64", "json:loads", "pixels"]
    for name in names:
        refuse_unknown_backbone(name)
        assert family_of(name)


@pytest.mark.parametrize("name", ["resnt18", "resnet19", "vit_small_patch16_225", "alexnet_jigsaww", "pixel"])
def test_a_name_of_no_family_is_refused_as_building_refuses_it(name):
    with pytest.raises(UsageError) as early:
        refuse_unknown_backbone(name)
    with pytest.raises(UsageError) as late:
        family_of(name)
    assert str(early.value) == str(late.value)


def test_a_model_that_timm_lacks_is_refused():
    with pytest.raises(UsageError, match="timm has no model 'resnt50'\nDid you mean 'resnet50'"):
        refuse_unknown_backbone("timm:resnt50.a1_in1k")


def test_a_network_to_be_filled_has_all_but_the_initial_values_of_its_parameters():
    vit = "timm:vit_tiny_patch16_224,img_size=32,depth=1"
    for name in (
        "resnet18w0.125",
        "alexnet_bvlc",
        vit,
        "timm:eva02_tiny_patch14_224,depth=1",
        "timm:nfnet_f0,depths=1-1-1-1",
    ):
        usual, empty = build(name).module, build(name, to_be_filled=True).module
        assert usual.state_dict().keys() == empty.state_dict().keys(), name
        for (where, buffer), other in zip(usual.named_buffers(), empty.buffers(), strict=True):
            assert torch.equal(buffer, other), (name, where)


def test_a_network_of_the_user_is_built_in_full_before_it_is_filled(tmp_path, monkeypatch):
    code = "import torch\n\ndef net():\n    torch.manual_seed(0)\n    net = torch.nn.Linear(3, 2)\n"
    (tmp_path / "looks_at_its_weights.py").write_text(
        code + "    net.scale = float(net.weight.detach().abs().max())\n    return net\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    first, second = (build("looks_at_its_weights:net", to_be_filled=filled).module for filled in (False, True))
    assert first.scale == second.scale > 0
