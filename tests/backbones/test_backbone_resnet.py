"""ResNets and AlexNets."""

import functools

import cv2
import numpy as np
import pytest
import timm
import torch
import torchvision
from helpers.offenders import offenders
from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck

from sslbench.backbones.alexnet import SPECS, Sobel, create, recognise_alexnet
from sslbench.backbones.architectures import ALEXNETS, RESNETS, parse, without_initialisation
from sslbench.backbones.build import build, laid_out
from sslbench.backbones.layers import forward_layers, resolve_layers
from sslbench.backbones.load import load_backbone
from sslbench.backbones.resnet import ResNet, SelectiveKernels, recognise_resnet
from sslbench.data.decode.transforms import lightness, normalise
from sslbench.errors import WeightsError

TORCHVISION = [name for name in RESNETS if hasattr(torchvision.models, name)]
UNUSUAL = [
    "resnet50w0.0625",
    "resnet18w0.25",
    "resnet50w1.5",
    "resnet_bottleneck_1-1-1-1",
    "resnet_basic_1-2-1-3w0.5",
    "resnext50_32x4dw2",
    "resnext_bottleneck_2-2-2-2_8x16d",
    "wide_resnet50_2w0.5",
    "wide_resnet50_1.5",
    "resnet50,in_chans=13",
    "resnet18w0.25_cifar,in_chans=1",
    "resnet18_cifar",
    "resnext50_32x4d_cifar",
    "resnet_bottleneck_1-2-1-1w3,sk_ratio=0.0625",
    "resnet50w0.5,sk_ratio=0.125",
]
# Few blocks of each kind: our name, and torchvision's arguments.
SHORT = {
    "resnet_basic_2-1-2-1": (BasicBlock, [2, 1, 2, 1], {}),
    "resnet_bottleneck_2-1-2-1": (Bottleneck, [2, 1, 2, 1], {}),
    "resnext_bottleneck_2-1-2-1_32x4d": (Bottleneck, [2, 1, 2, 1], {"groups": 32, "width_per_group": 4}),
}
STRIDES = ["resnet50,output_stride=8", "resnet18w0.5,third_stride=1", "resnet50,last_stride=1,third_stride=1"]


def shapes_of(module):
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


@functools.cache
def our_shapes(name):
    with laid_out():
        return shapes_of(ResNet(parse(name)))


def ours_with_tensors_of(theirs, name):
    ours = build(name, to_be_filled=True).module
    ours.load_state_dict({key: value for key, value in theirs.state_dict().items() if not key.startswith("fc.")})
    return ours


def test_every_torchvision_resnet_is_covered():
    theirs = {name for name in torchvision.models.list_models(module=torchvision.models) if "resne" in name}
    assert theirs == set(TORCHVISION)


def has_torchvisions_names_and_shapes(name):
    with laid_out():
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
    ours = ours_with_tensors_of(theirs, name)
    theirs.fc = torch.nn.Identity()
    images = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(ours(images), theirs(images))


@pytest.mark.parametrize(("stride", "replaced"), [(8, (False, True, True)), (16, (False, False, True))])
def test_dilated_networks_are_those_of_torchvision(stride, replaced):
    """The same weights give the same maps of the third and the last stage."""
    narrow = {"width_per_group": 8, "replace_stride_with_dilation": replaced}
    theirs = torchvision.models.ResNet(Bottleneck, [1, 2, 2, 2], **narrow).eval()
    ours = ours_with_tensors_of(theirs, f"resnext_bottleneck_1-2-2-2_1x8d,output_stride={stride}")
    found, wanted = maps_of(ours), maps_of(theirs)
    assert found["layer4"].shape[2:] == (96 // stride, 64 // stride)
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name])


@pytest.mark.parametrize("stride", [8, 16])
def test_dilated_basic_blocks_are_those_of_timm(stride):
    theirs = timm.create_model("resnet18", output_stride=stride, layers=(1, 1, 2, 2)).eval()
    ours = ours_with_tensors_of(theirs, f"resnet_basic_1-1-2-2,output_stride={stride}")
    found, wanted = maps_of(ours), maps_of(theirs)
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name])


@pytest.mark.parametrize("name", ["resnet_basic_2-1-2-1", "resnet_bottleneck_2-1-2-1"])
@pytest.mark.parametrize(("norm", "groups"), [("layer", 1), ("group32", 32)])
def test_layer_and_group_norms_are_those_of_torchvision(name, norm, groups):
    block, blocks, options = SHORT[name]
    theirs = torchvision.models.ResNet(block, blocks, norm_layer=functools.partial(nn.GroupNorm, groups), **options)
    for tensor in theirs.state_dict().values():
        if tensor.ndim == 1:
            tensor.uniform_(0.5, 2)
    ours = ours_with_tensors_of(theirs, f"{name},norm={norm}")
    theirs.fc = nn.Identity()
    images = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(ours(images), theirs(images))


def test_a_file_without_running_statistics_asks_for_the_norm(tmp_path):
    name = "resnet_basic_1-1-1-1w0.125,norm=layer"
    torch.save(ResNet(parse(name)).state_dict(), tmp_path / "w.pth")
    with pytest.raises(WeightsError, match="LayerNorm or GroupNorm, which tensors do not tell apart"):
        load_backbone(str(tmp_path / "w.pth"))
    assert load_backbone(str(tmp_path / "w.pth"), backbone=name).name == name


def test_selective_kernels_weigh_the_two_maps_of_each_channel():
    """The formula channel by channel: softmax over two scores, which one small layer computes from the summed mean."""
    torch.manual_seed(0)
    select = SelectiveKernels(parse("resnet50,sk_ratio=0.5"), 6).eval()
    assert select.conv1.out_channels == 32, "the least width"
    x = torch.randn(2, 12, 3, 5)
    with torch.inference_mode():
        found = select(x)
        for image, maps in enumerate(x):
            mean = (maps[:6] + maps[6:]).flatten(1).mean(1)
            hidden = torch.relu(select.conv1.weight[:, :, 0, 0] @ mean / (1 + select.bn1.eps) ** 0.5)
            scores = select.conv2.weight[:, :, 0, 0] @ hidden
            for channel in range(6):
                weight = torch.sigmoid(scores[channel] - scores[channel + 6])
                wanted = weight * maps[channel] + (1 - weight) * maps[channel + 6]
                torch.testing.assert_close(found[image, channel], wanted)


def test_networks_of_selective_kernels_have_a_deep_stem_and_pooled_shortcuts():
    network = ResNet(parse("resnet_bottleneck_1-1-1-1w0.25,sk_ratio=0.0625,in_chans=4")).eval()
    assert [tuple(network.conv1[i].weight.shape[:2]) for i in (0, 3, 6)] == [(8, 4), (8, 8), (16, 8)]
    for name, stride in (("layer1", 1), ("layer2", 2)):
        pool, convolution, _ = network.get_submodule(name)[0].downsample
        assert convolution.stride == (1, 1)
        x = torch.rand(1, 2, 6, 4)
        wide = torch.zeros(1, 2, 7, 5)
        wide[:, :, :6, :4] = x
        windows = wide.unfold(2, 2, stride).unfold(3, 2, stride)
        torch.testing.assert_close(pool(x), windows.sum((-1, -2)) / 4)
    assert maps_of(ResNet(parse("resnet_bottleneck_1-1-1-1w0.25,sk_ratio=0.0625")))["layer4"].shape[2:] == (3, 2)


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
    theirs = torchvision.models.ResNet(BasicBlock, [2, 1, 1, 1]).eval()
    theirs.conv1 = torch.nn.Conv2d(3, 64, 3, stride=1, padding=1, bias=False)
    theirs.maxpool, theirs.fc = torch.nn.Identity(), torch.nn.Identity()
    ours = ours_with_tensors_of(theirs, "resnet_basic_2-1-1-1_cifar")
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


@pytest.mark.parametrize("name", ["resnet18", "resnext50_32x4d"])
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
    "resnet50,third_stride=3 resnet50,norm=instance resnet50,norm=group0 resnet50,norm=group48 resnet18,sk_ratio=0.5 "
    "resnext50_32x4d,sk_ratio=0.5 resnet50_cifar,sk_ratio=0.5 resnet50,sk_ratio=2"
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
    for name in (*STRIDES, "resnet152w3,sk_ratio=0.0625"):
        assert parse(name).name == name
    spec = parse("resnet18,zero_init_residual=True,in_chans=4")
    assert spec.name == "resnet18,in_chans=4,zero_init_residual=true"
    assert parse("resnet18,zero_init_residual=false").name == "resnet18"
    assert without_initialisation(spec.name) == "resnet18,in_chans=4"
    assert without_initialisation("timm:resnet18") == "timm:resnet18"


@pytest.fixture(scope="module")
def all_shapes():
    with laid_out():
        return {name: shapes_of(create(name)) for name in ALEXNETS}


@pytest.mark.parametrize("name", ALEXNETS)
def test_each_variant_is_recognised_from_its_shapes(all_shapes, name):
    assert recognise_alexnet(all_shapes[name]) == name
    old = {key: shape for key, shape in all_shapes[name].items() if not key.endswith("num_batches_tracked")}
    assert recognise_alexnet(old) == name
    assert recognise_alexnet(dict(list(old.items())[:-1])) == name  # one missing: loading names it


def test_other_networks_are_not_taken_for_one():
    assert recognise_alexnet({"conv1.weight": (64, 3, 7, 7)}) is None
    assert recognise_alexnet({"features.0.weight": (64, 3, 3, 3), "features.2.weight": (64, 64, 3, 3)}) is None  # VGG


# (name, image size) -> numbers per layer, from the linear heads of VISSL's configurations
HEADS = {
    ("alexnet_bvlc", 227): (9600, 9216, 9600, 9600, 9216),
    ("alexnet_colorization", 227): (9600, 9216, 9600, 9600, 9216),
    ("alexnet_jigsaw", 227): (9600, 9216, 9600, 9600, 9216),
    ("alexnet_deepcluster", 224): (9600, 9216, 9600, 9600, 9216),
    ("alexnet_rotnet", 224): (9216, 9408, 9600, 9216, 9216),
}


@pytest.mark.parametrize(("name", "size"), HEADS)
def test_vissls_pools_give_as_many_numbers_as_its_heads_take(name, size):
    backbone = build(name)
    assert backbone.preprocessing.crop == (size, size)
    layers = resolve_layers(backbone, [f"conv{number}:vissl" for number in range(1, 6)])
    with torch.inference_mode():
        features = forward_layers(backbone.module, torch.zeros(1, backbone.preprocessing.channels, size, size), layers)
    assert tuple(features[layer.text].shape[1] for layer in layers) == HEADS[name, size]


@pytest.mark.parametrize("name", ALEXNETS)
def test_the_layers_are_after_the_relu_and_the_output_is_flat(name):
    backbone = build(name)
    layers = resolve_layers(backbone, ["conv1:flatten", "conv5:flatten", "pool5:flatten", "flatten"])
    with torch.inference_mode():
        features = forward_layers(backbone.module, torch.rand(2, backbone.preprocessing.channels, 224, 224), layers)
    assert all(float(features[layer.text].min()) >= 0 for layer in layers[:2])
    assert features[layers[3].text].ndim == 2
    if name != "alexnet":  # torchvision averages once more, which at 224 pixels changes nothing
        assert torch.equal(features[layers[3].text], features[layers[2].text])


def test_sobel_sees_edges_of_the_mean_of_the_channels():
    image = torch.zeros(1, 3, 5, 5)
    image[:, :, :, 3:] = 3.0
    across, along = Sobel()(image)[0]
    assert across[2].tolist() == [0, 0, -12, -12, 12] and torch.all(along[1:4, :4] == 0)


def test_lightness_is_that_of_cie_lab():
    values = torch.tensor([[0, 0, 0], [255, 255, 255], [255, 0, 0], [0, 0, 255], [119, 119, 119], [3, 3, 3]]) / 255
    preprocessing = build("alexnet_colorization").preprocessing
    found = normalise(255 * values.T.reshape(1, 3, 1, 6), preprocessing).flatten() + 50
    # from the tables of CIE Lab for sRGB, D65
    np.testing.assert_allclose(found, [0, 100, 53.24, 32.30, 50.03, 0.82], atol=0.03)


def test_lightness_of_8_bits_is_opencvs_and_grey_images_have_it_too():
    pixels = np.random.default_rng(0).integers(0, 256, (60, 60, 3), dtype=np.uint8)
    levels = cv2.cvtColor(np.ascontiguousarray(pixels[:, :, ::-1]), cv2.COLOR_BGR2LAB)[:, :, 0]
    found = lightness(torch.from_numpy(pixels).permute(2, 0, 1)[None])[0, 0].numpy()
    np.testing.assert_allclose(found, levels, atol=1)
    grey = torch.from_numpy(pixels[:, :, :1].copy()).permute(2, 0, 1)[None]
    assert torch.equal(lightness(grey), lightness(grey.repeat(1, 3, 1, 1)))


def test_the_order_of_pooling_and_normalisation_differs():
    kinds = {
        name: [type(part) for part in build(name).module.features[3]] for name in ("alexnet_bvlc", "alexnet_jigsaw")
    }
    assert kinds["alexnet_bvlc"] == [nn.LocalResponseNorm, nn.MaxPool2d]
    assert kinds["alexnet_jigsaw"] == [nn.MaxPool2d, nn.LocalResponseNorm]
    assert SPECS["alexnet_bvlc"].preprocessing.std == (1 / 255,) * 3


def blobs():
    """A supervised Caffe2 AlexNet of full size, whose first filter sees the blue channel only."""
    tensors = build("alexnet_bvlc").module.state_dict()
    numbers = {"0": 1, "4": 2, "8": 3, "11": 4, "14": 5}
    found = {}
    for key, tensor in tensors.items():
        _, index, leaf = key.split(".")
        found[f"conv{numbers[index]}_{leaf[0]}"] = tensor.numpy().copy()
    found["conv1_w"][0] = 0
    found["conv1_w"][0, 0] = 1  # BGR: the first channel is blue
    return found


def test_a_caffe2_file_becomes_a_backbone_that_sees_rgb(tmp_path):
    import pickle

    (tmp_path / "alexnet.pkl").write_bytes(pickle.dumps({"blobs": blobs() | {"pred_w": np.zeros((10, 4), np.float32)}}))
    backbone = load_backbone(str(tmp_path / "alexnet.pkl"))
    assert backbone.name == "alexnet_bvlc" and backbone.format == "caffe2_alexnet"
    assert (
        "10 of 10 backbone tensors (100.0 % of parameters), format caffe2_alexnet; ignored: pred_*"
        in backbone.report.line()
    )
    blue = torch.zeros(1, 3, 227, 227)
    blue[:, 2] = 1.0
    with torch.inference_mode():
        assert float(backbone.module.features[0](blue)[0, 0].min()) > 100
        assert float(backbone.module.features[0](blue.flip(1))[0, 0].max()) < 1


def test_a_missing_layer_is_named(tmp_path):
    import pickle

    tensors = blobs()
    del tensors["conv3_b"]
    (tmp_path / "alexnet.pkl").write_bytes(pickle.dumps(tensors))
    with pytest.raises(WeightsError, match=r"1 of 10 tensors missing: 'features\.8\.bias'"):
        load_backbone(str(tmp_path / "alexnet.pkl"))
