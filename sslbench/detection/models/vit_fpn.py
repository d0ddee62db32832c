"""Simple feature pyramid of ViTDet (Li et al. 2022, arXiv 2203.16527) on a timm vision transformer.

Differences from the paper: attention is global in every block (theirs is windowed, with relative positions, to save
memory), and there is no stochastic depth.
"""

import logging
from typing import cast

from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.build import build
from sslbench.backbones.resnet import ResNet
from sslbench.detection.models.fpn import coarsest
from sslbench.detection.models.layers import Conv, Norm, freeze, make_norm
from sslbench.detection.recipe import DetectionRecipe
from sslbench.errors import UsageError

log = logging.getLogger("sslbench")

STRIDES = (4, 8, 16, 32, 64)


class SimplePyramid(nn.Module):
    """Feature pyramid with maps of strides 4 to 64 from the last map of a vision transformer."""

    def __init__(self, net: VisionTransformer, patch: int, out: int, norm: Norm) -> None:
        """Set up the pyramid for a transformer, its patch side (8 or 16), and the pyramid's channels and norm."""
        super().__init__()
        self.net = net
        for level, stride in enumerate(STRIDES[:4], start=2):
            layers, width = _rescale(int(net.embed_dim), patch / stride, norm)
            layers += [Conv(width, out, 1, norm=norm), Conv(out, out, 3, norm=norm)]
            self.add_module(f"simfp_{level}", nn.Sequential(*layers))

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return five maps, finest first, of images (B, channels, H, W) with sides divisible by 32."""
        maps = cast(list[Tensor], self.net.forward_intermediates(images, indices=1, intermediates_only=True))
        results = [self.get_submodule(f"simfp_{level}")(maps[0]) for level in range(2, 6)]
        return [*results, coarsest(results[-1])]


def _rescale(width: int, factor: float, norm: Norm) -> tuple[list[nn.Module], int]:
    """Return layers that scale a map's resolution by `factor`, and their output channels."""
    if factor > 1:
        layers: list[nn.Module] = [nn.ConvTranspose2d(width, width // 2, 2, stride=2)]
        if factor == 2:
            return layers, width // 2
        between = make_norm(norm, width // 2)
        layers += [] if between is None else [between]
        return [*layers, nn.GELU(), nn.ConvTranspose2d(width // 2, width // 4, 2, stride=2)], width // 4
    side = int(1 / factor)
    return ([nn.MaxPool2d(side, stride=side)] if side > 1 else []), width


def simple_pyramid(backbone: Backbone, recipe: DetectionRecipe) -> SimplePyramid:
    """Build the pyramid of a resolved recipe on a vision transformer.

    Positions are resampled to the size of each batch. Patches of 8 and 16 pixels are kept; others are resampled to 16,
    so that the strides of the maps are powers of two (timm's `resample_patch_embed`, Beyer et al.
    2023, FlexiViT).

    Raises:
        UsageError: the backbone is no plain vision transformer of timm.
    """
    if backbone.kind.users or not isinstance(backbone.module, VisionTransformer):
        other = " For ResNets use architecture=fpn or c4." if isinstance(backbone.module, ResNet) else ""
        raise UsageError(
            f"architecture=vit_fpn needs a vision transformer of timm, but the backbone is {backbone.name}",
            f"For example timm:vit_base_patch16_224.{other}",
        )
    net = build(f"{backbone.name},dynamic_img_size=True").module
    net.load_state_dict(backbone.module.state_dict())
    if not isinstance(net, VisionTransformer):
        raise UsageError(f"{backbone.name} cannot be built for images of any size")
    patch = int(net.patch_embed.patch_size[0])
    if patch not in (8, 16):
        log.warning(f"{backbone.name}: its patches of {patch} pixels are resampled to 16 for detection")
        net.set_input_size(patch_size=(16, 16))
        patch = 16
    net.norm = nn.Identity()  # the pyramid uses its input; DDP fails on weights without gradient
    net.fc_norm = nn.Identity()
    net.attn_pool = None  # type: ignore[assignment]
    net.requires_grad_(True)
    if recipe.freeze_at == 5:
        freeze(net)
    norm: Norm = recipe.norm if recipe.pyramid_norm == "same" else recipe.pyramid_norm or "none"
    return SimplePyramid(net, patch, recipe.pyramid_channels, norm)
