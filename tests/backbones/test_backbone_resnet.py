"""ResNets: the names and shapes are torchvision's, the outputs too, and shapes alone tell which one it is."""

import functools

import pytest
import timm
import torch
import torchvision
from helpers.offenders import offenders
from torchvision.models.resnet import BasicBlock, Bottleneck

from sslbench.backbones.architectures import DEPTHS, RESNETS, parse, without_initialisation
from sslbench.backbones.resnet import ResNet, recognise_resnet

TORCHVISION = [name for name in RESNETS if hasattr(torchvision.models, name)]
UNUSUAL = [
    "resnet50w0.0625",
    "resnet18w0.25",
    "resnet101w1.5",
    "resnet_bottleneck_1-1-1-1",
    "resnet_basic_1-2-1-3w0.5",
    "resnext50_32x4dw2",
    "resnext_bottleneck_2-2-2-2_8x16d",
    "wide_resnet50_2w0.5",
    "wide_resnet101_1.5",
    "resnet50,in_chans=13",
    "resnet18w0.25_cifar,in_chans=1",
    "resnext50_32x4d_cifar",
    *(f"resnet{depth}_cifar" for depth in DEPTHS),
]
# Few blocks of each kind: our name, and torchvision's arguments.
SHORT = {
    "resnet_basic_1-2-1-2": (BasicBlock, [1, 2, 1, 2], {}),
    "resnet_bottleneck_1-2-1-2": (Bottleneck, [1, 2, 1, 2], {}),
    "resnext_bottleneck_1-2-1-2_32x4d": (Bottleneck, [1, 2, 1, 2], {"groups": 32, "width_per_group": 4}),
}
STRIDES = ["resnet50,output_stride=8", "resnet18w0.5,third_stride=1", "resnet50,last_stride=1,third_stride=1"]


def shapes_of(module):
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


@functools.cache
def our_shapes(name):
    with torch.device("meta"):
        return shapes_of(ResNet(parse(name)))


def test_every_torchvision_resnet_is_covered():
    theirs = {name for name in torchvision.models.list_models(module=torchvision.models) if "resne" in name}
    assert theirs == set(TORCHVISION)


def has_torchvisions_names_and_shapes(name):
    with torch.device("meta"):
        theirs = shapes_of(getattr(torchvision.models, name)())
    assert our_shapes(name) == {key: shape for key, shape in theirs.items() if not key.startswith("fc.")}


def test_names_and_shapes_are_those_of_torchvision():
    assert offenders(TORCHVISION, has_torchvisions_names_and_shapes) == []


def test_resnet50_has_318_tensors():
    assert len(our_shapes("resnet50")) == 318


@pytest.mark.parametrize("name", SHORT)
def test_outputs_are_those_of_torchvision(name):
    block, blocks, options = SHORT[name]
    theirs = torchvision.models.ResNet(block, blocks, **options).eval()
    for module in theirs.modules():  # statistics of a fresh network would not show a swapped pair
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
    ours = ResNet(parse(name)).eval()
    ours.load_state_dict({key: value for key, value in theirs.state_dict().items() if not key.startswith("fc.")})
    theirs.fc = torch.nn.Identity()
    images = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(ours(images), theirs(images))


@pytest.mark.parametrize(("stride", "replaced"), [(8, (False, True, True)), (16, (False, False, True))])
def test_dilated_networks_are_those_of_torchvision(stride, replaced):
    """The same weights give the same maps of the third and the last stage."""
    theirs = torchvision.models.ResNet(Bottleneck, [1, 2, 2, 2], replace_stride_with_dilation=replaced).eval()
    ours = ResNet(parse(f"resnet_bottleneck_1-2-2-2,output_stride={stride}")).eval()
    ours.load_state_dict({key: value for key, value in theirs.state_dict().items() if not key.startswith("fc.")})
    found, wanted = maps_of(ours), maps_of(theirs)
    assert found["layer4"].shape[2:] == (96 // stride, 64 // stride)
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name])


@pytest.mark.parametrize("stride", [8, 16])
def test_dilated_basic_blocks_are_those_of_timm(stride):
    theirs = timm.create_model("resnet18", output_stride=stride).eval()
    ours = ResNet(parse(f"resnet18,output_stride={stride}")).eval()
    ours.load_state_dict({key: value for key, value in theirs.state_dict().items() if not key.startswith("fc.")})
    found, wanted = maps_of(ours), maps_of(theirs)
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name])


def maps_of(module):
    images, seen = torch.randn(2, 3, 96, 64, generator=torch.Generator().manual_seed(0)), {}
    hooks = [
        getattr(module, name).register_forward_hook(lambda _, args, output, name=name: seen.update({name: output}))
        for name in ("layer3", "layer4")
    ]
    with torch.inference_mode():
        module(images)
    for hook in hooks:
        hook.remove()
    return seen


def test_the_network_of_the_random_walk_has_stride_8_without_dilation():
    """Jabri et al. 2020 set the strides of the last two stages to 1 and change nothing else."""
    ours = ResNet(parse("resnet18w0.25,third_stride=1,last_stride=1"))
    assert maps_of(ours)["layer3"].shape[2:] == maps_of(ours)["layer4"].shape[2:] == (12, 8)
    convolutions = [module for module in ours.modules() if isinstance(module, torch.nn.Conv2d)]
    assert {each.dilation for each in convolutions} == {(1, 1)}


def test_the_stem_for_small_images_keeps_their_size():
    """SimCLR, appendix B.9: a 3x3 convolution of stride 1 and no pooling, all else as it is, under the same names."""
    theirs = torchvision.models.resnet18().eval()
    theirs.conv1 = torch.nn.Conv2d(3, 64, 3, stride=1, padding=1, bias=False)
    theirs.maxpool, theirs.fc = torch.nn.Identity(), torch.nn.Identity()
    ours = ResNet(parse("resnet18_cifar")).eval()
    ours.load_state_dict(theirs.state_dict())
    images, seen = torch.randn(2, 3, 32, 32), []
    ours.layer1.register_forward_hook(lambda module, args, output: seen.append(output.shape[2:]))
    with torch.inference_mode():
        torch.testing.assert_close(ours(images), theirs(images))
    assert seen == [(32, 32)]


def test_a_width_multiplier_multiplies_every_channel():
    plain, double = our_shapes("resnet50"), our_shapes("resnet50w2")
    assert plain.keys() == double.keys()
    for name, shape in plain.items():
        scaled = tuple(n if position > 1 or n == 3 else 2 * n for position, n in enumerate(shape))
        assert double[name] == scaled, name


def is_recognised(name):
    assert parse(name).name == name
    assert recognise_resnet(our_shapes(name)) == name


def test_shapes_alone_tell_the_architecture():
    assert offenders([*RESNETS, *UNUSUAL], is_recognised) == []


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "wide_resnet50_2", "resnext50_32x4d"])
def test_recognised_with_a_tenth_of_the_tensors_missing_or_without_batch_counters(name):
    shapes = our_shapes(name)
    for start in range(10):
        assert recognise_resnet({key: shapes[key] for i, key in enumerate(shapes) if i % 10 != start}) == name
    assert recognise_resnet({k: s for k, s in shapes.items() if not k.endswith("num_batches_tracked")}) == name
    assert recognise_resnet(shapes | {"layer3.0.conv1.weight": (7, 7, 1, 1)}) == name


def test_other_architectures_are_not_taken_for_a_resnet():
    shapes = our_shapes("resnet50")
    assert recognise_resnet({}) is None
    assert recognise_resnet({"features.0.weight": (64, 3, 11, 11)}) is None
    assert recognise_resnet(shapes | {"conv1.weight": (64, 3, 5, 5)}) is None, "neither ImageNet's stem nor CIFAR's"
    assert recognise_resnet(shapes | {"conv1.weight": (64, 0, 7, 7)}) is None, "no channels"
    assert recognise_resnet(shapes | {"layer1.0.se.fc1.weight": (16, 256, 1, 1)}) is None
    assert recognise_resnet({k: s for k, s in shapes.items() if not k.startswith("layer4.")}) is None
    assert recognise_resnet(shapes | {"layer5.0.bn1.weight": (1024,)}) is None


MEANINGLESS = (
    "resnet resnet49 resnet50w0.3 resnet50w0 resnet50_2 resnext50 wide_resnet50 wide_resnet18_2 resnext18_32x4d "
    "resnet50d resnet50w xresnet50 resnet_basic_2-2-2 resnet50_cifar10 resnet50_cifarw2 resnet50,in_chans=0 "
    "resnet50,in_chans= resnet50,in_chans=3,in_chans=3 resnet50,drop=1 resnet50,zero_init_residual=2 "
    "resnet50,zero_init_residual resnet50,output_stride=4 resnet50_cifar,output_stride=8 "
    "resnet50,third_stride=3"
)


def test_names_that_mean_nothing_are_refused():
    assert [name for name in MEANINGLESS.split() if parse(name) is not None] == []


@pytest.mark.parametrize(("name", "last"), [("resnet18w0.25", "bn2"), ("resnet50w0.125", "bn3")])
def test_residual_branches_that_begin_at_zero(name, last):
    """As torchvision's zero_init_residual: the last BatchNorm of every block, and nothing else."""
    plain, zero = ResNet(parse(name)), ResNet(parse(f"{name},zero_init_residual=true"))
    blocks = sum(parse(name).layers)
    zeros = {key for key, tensor in zero.state_dict().items() if key.endswith("weight") and not tensor.any()}
    assert len(zeros) == blocks
    assert all(key.endswith(f".{last}.weight") for key in zeros)
    assert all(tensor.any() for key, tensor in plain.state_dict().items() if key.endswith("weight"))


def test_options_of_a_name_in_any_order():
    for name in STRIDES:
        assert parse(name).name == name
    spec = parse("resnet18,zero_init_residual=True,in_chans=4")
    assert spec.name == "resnet18,in_chans=4,zero_init_residual=true"
    assert parse("resnet18,zero_init_residual=false").name == "resnet18"
    assert without_initialisation(spec.name) == "resnet18,in_chans=4"
    assert without_initialisation("timm:resnet18") == "timm:resnet18"
