"""Maps of features for images of any size."""

from typing import Any

import pytest
import torch

from sslbench.backbones.build import build
from sslbench.backbones.dense import DenseEncoder, block_inputs, layer_inputs, number_of_blocks
from sslbench.backbones.layers import resolve_layers
from sslbench.errors import BackboneError, UsageError

VIT = "timm:test_vit"


def _images(height: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn((2, 3, height, width), generator=generator)


def test_map_of_a_convolution_is_its_output() -> None:
    backbone = build("resnet18")
    encoder = DenseEncoder(backbone, layer_inputs(backbone, resolve_layers(backbone, ["res4", "res5"])))
    images = _images(70, 101)
    maps = encoder(images)
    with torch.no_grad():
        seen: list[torch.Tensor] = []
        path = backbone.aliases["res5"]
        handle = backbone.module.get_submodule(path).register_forward_hook(lambda *a: seen.append(a[2]))
        backbone.module(images)
        handle.remove()
    torch.testing.assert_close(maps["res5"], seen[0], rtol=1e-3, atol=1e-4)
    assert encoder.multiple == 1 and encoder.widths == {"res4": 256, "res5": 512}


def test_patches_of_a_vit_equal_timms_dynamic_sizes() -> None:
    backbone = build(VIT)
    free = build(f"{VIT},dynamic_img_size=True")
    free.module.load_state_dict(backbone.module.state_dict())
    encoder = DenseEncoder(backbone, block_inputs(backbone, [1, 2], cls=True))
    for height, width in ((64, 96), (160, 160), (48, 32)):
        images = _images(height, width)
        with torch.no_grad():
            network: Any = free.module
            found = network.forward_intermediates(
                images, indices=2, norm=True, return_prefix_tokens=True, intermediates_only=True
            )
        maps = encoder(images)
        last, tokens = found[-1]
        wanted = torch.cat([last, tokens[:, 0, :, None, None].expand(-1, -1, *last.shape[2:])], dim=1)
        torch.testing.assert_close(maps["last block+cls"], wanted, rtol=1e-4, atol=1e-5)
        assert maps["last 2 blocks+cls"].shape[1] == 2 * wanted.shape[1]


def test_facets_are_parts_of_the_attention() -> None:
    backbone = build(VIT)
    images, last = _images(160, 160), resolve_layers(backbone, [f"blocks.{number_of_blocks(backbone) - 1}"])
    key = DenseEncoder(backbone, layer_inputs(backbone, last, facet="key"))(images)
    query = DenseEncoder(backbone, layer_inputs(backbone, last, facet="query"))(images)
    (name,) = key
    assert name.endswith("@key") and key[name].shape == next(iter(query.values())).shape
    assert not torch.equal(key[name], next(iter(query.values())))


def test_joined_layers_have_the_finest_grid() -> None:
    backbone = build("resnet18")
    encoder = DenseEncoder(backbone, layer_inputs(backbone, resolve_layers(backbone, ["concat(res4,res5)"])))
    (maps,) = encoder(_images(64, 64)).values()
    assert tuple(maps.shape) == (2, 768, 4, 4)


def test_sizes_and_layers_without_a_map_are_refused() -> None:
    backbone = build(VIT)
    encoder = DenseEncoder(backbone, block_inputs(backbone, [1]))
    with pytest.raises(BackboneError, match="multiple of its patches of 16"):
        encoder(_images(50, 64))
    resnet = build("resnet18")
    with pytest.raises(UsageError, match="need a vision transformer"):
        block_inputs(resnet, [1])
    with pytest.raises(UsageError, match="not pooled"):
        layer_inputs(backbone, resolve_layers(backbone, ["blocks.1:cls"]))
    with pytest.raises(BackboneError, match="one vector per image"):
        DenseEncoder(resnet, layer_inputs(resnet, resolve_layers(resnet, ["output"])))


def test_the_backbone_is_not_changed() -> None:
    backbone = build(VIT)
    before = {name: x.clone() for name, x in backbone.module.state_dict().items()}
    encoder = DenseEncoder(backbone, block_inputs(backbone, [1]))
    digest = encoder.state_sha256()
    encoder(_images(64, 96))
    assert encoder.state_sha256() == digest
    assert all(torch.equal(x, before[name]) for name, x in backbone.module.state_dict().items())
