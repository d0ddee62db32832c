"""Grids of features: every patch or cell where it lies in the image."""

import dataclasses

import numpy as np
import pytest
import torch

from sslbench.backbones.build import build
from sslbench.backbones.dense import DenseEncoder, layer_inputs
from sslbench.backbones.grids import grid_of_tokens, resolve_grids
from sslbench.backbones.layers import forward_layers, resolve_layers
from sslbench.backbones.speed import prepare
from sslbench.errors import BackboneError, UsageError

RESNET = "resnet18w0.125"
VIT = "timm:vit_tiny_patch16_224,img_size=32,patch_size=8,depth=2,embed_dim=24,num_heads=2,dynamic_img_size=True"


def test_cells_of_a_map_stand_row_by_row():
    backbone = build(RESNET, seed=0)
    images = torch.rand(2, 3, 64, 96)
    (layer,) = resolve_grids(backbone, ["res3"], (64, 96))
    assert layer.text == "res3:grid(8,12)" and (layer.grid, layer.regions) == ((8, 12), 96)
    seen = []
    handle = backbone.module.layer2.register_forward_hook(lambda _m, _i, output: seen.append(output))
    with torch.inference_mode():
        found = forward_layers(backbone.module, images, [layer])[layer.text].numpy()
    handle.remove()
    maps = seen[-1].numpy()
    assert (found.reshape(2, 8, 12, -1)[1, 5, 7] == maps[1, :, 5, 7]).all()


@pytest.mark.parametrize("options", ["", ",class_token=False,global_pool='avg'", ",reg_tokens=4"])
def test_patches_of_a_transformer_come_without_its_other_tokens(options):
    backbone = build(VIT + options, seed=0)
    (layer,) = resolve_grids(backbone, [], (32, 48))
    assert layer.text == "last:grid(4,6)"
    with torch.inference_mode():
        images = torch.rand(1, 3, 32, 48)
        found = forward_layers(backbone.module, images, [layer])[layer.text].numpy()
        tokens = backbone.module.forward_features(images).numpy()
    np.testing.assert_array_equal(found.reshape(24, -1), tokens[0, -24:])


def test_joined_layers_join_each_cell():
    backbone = build(VIT, seed=0)
    joined, one, two = resolve_grids(backbone, ["concat(blocks.0,blocks.1)", "blocks.0", "blocks.1"], (32, 48))
    assert joined.grid == (4, 6) and joined.text == "concat(blocks.0:grid(4,6),blocks.1:grid(4,6))"
    with torch.inference_mode():
        found = forward_layers(backbone.module, torch.rand(1, 3, 32, 48), [joined, one, two])
    cells = [found[layer.text].reshape(24, -1).numpy() for layer in (joined, one, two)]
    np.testing.assert_array_equal(cells[0], np.concatenate(cells[1:], axis=1))


def test_what_has_no_grid_is_one_message():
    backbone = build(RESNET, seed=0)
    with pytest.raises(UsageError, match="need images of one size"):
        resolve_grids(backbone, [], None)
    with pytest.raises(UsageError, match="the pool of a grid is grid"):
        resolve_grids(backbone, ["res3:avg"], (32, 32))
    with pytest.raises(BackboneError, match="one vector per image"):
        resolve_grids(backbone, ["output"], (32, 32))
    with pytest.raises(UsageError, match="joins grids of different sizes"):
        resolve_grids(backbone, ["concat(res2,res3)"], (32, 32))
    with pytest.raises(BackboneError, match="no grid of patches"):
        grid_of_tokens(17, (32, 32), "blocks.0")


def test_the_class_token_stands_in_every_cell_and_mirror_images_are_averaged():
    backbone = build(VIT, seed=0)
    names = ["last", "last:grid+cls", "last:grid+flip", "last:grid+cls+flip"]
    layers = resolve_grids(backbone, names, (32, 48))
    assert [layer.text for layer in layers[1:]] == [f"{name}(4,6)" for name in names[1:]]
    encode = prepare(backbone, layers, device=torch.device("cpu"))
    images = torch.rand(2, 3, 32, 48)
    found = [encode(images)[layer.text].reshape(2, 4, 6, -1) for layer in layers]
    mirrored = [encode(images.flip(-1))[layer.text].reshape(2, 4, 6, -1).flip(2) for layer in layers]
    own = DenseEncoder(backbone, layer_inputs(backbone, resolve_layers(backbone, ["last"]), cls=True))
    with_class = own(images)["last+cls"].permute(0, 2, 3, 1)
    torch.testing.assert_close(found[1], with_class, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[0], with_class[..., :24], rtol=1e-4, atol=1e-5)
    for plain, averaged in ((0, 2), (1, 3)):
        torch.testing.assert_close(found[averaged], (found[plain] + mirrored[plain]) / 2)
        torch.testing.assert_close(mirrored[averaged], found[averaged], msg="a mirror image has mirrored features")


def test_mirrored_maps_of_convolutions_are_averaged():
    backbone = build(RESNET, seed=0)
    sizes = dataclasses.replace(backbone.preprocessing, resize=(64, 96), crop=None)
    backbone = dataclasses.replace(backbone, preprocessing=sizes)
    plain, averaged = resolve_grids(backbone, ["res3", "res3:grid+flip"], (64, 96))
    encode = prepare(backbone, [plain, averaged], device=torch.device("cpu"))
    images = torch.rand(2, 3, 64, 96)
    both = [encode(each)[plain.text].reshape(2, 8, 12, -1) for each in (images, images.flip(-1))]
    found = encode(images)[averaged.text].reshape(2, 8, 12, -1)
    torch.testing.assert_close(found, (both[0] + both[1].flip(2)) / 2)


def test_a_network_without_class_token_has_none_to_join():
    with pytest.raises(BackboneError, match=r"cannot be pooled with 'grid\+cls\(8,8\)'"):
        backbone = build(RESNET, seed=0)
        forward_layers(backbone.module, torch.zeros(1, 3, 64, 64), resolve_grids(backbone, ["res3:grid+cls"], (64, 64)))
