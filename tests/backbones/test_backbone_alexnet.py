"""AlexNets: recognised from shapes, with the layers, inputs and pools of VISSL's benchmark."""

import cv2
import numpy as np
import pytest
import torch
from torch import nn

from sslbench.backbones.alexnet import SPECS, Sobel, recognise_alexnet
from sslbench.backbones.architectures import ALEXNETS
from sslbench.backbones.build import build
from sslbench.backbones.layers import forward_layers, resolve_layers
from sslbench.backbones.load import load_backbone
from sslbench.data.decode.transforms import lightness, normalise
from sslbench.errors import WeightsError


def shapes(name):
    return {key: tuple(tensor.shape) for key, tensor in build(name).module.state_dict().items()}


@pytest.fixture(scope="module")
def all_shapes():
    return {name: shapes(name) for name in ALEXNETS}


@pytest.mark.parametrize("name", ALEXNETS)
def test_each_variant_is_recognised_from_its_shapes(all_shapes, name):
    assert recognise_alexnet(all_shapes[name]) == name
    old = {key: shape for key, shape in all_shapes[name].items() if not key.endswith("num_batches_tracked")}
    assert recognise_alexnet(old) == name
    assert recognise_alexnet(dict(list(old.items())[:-1])) == name  # one missing: loading names it


def test_other_networks_are_not_taken_for_one(all_shapes):
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
