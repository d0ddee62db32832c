"""Simple feature pyramid of ViTDet (Li et al. 2022, arXiv 2203.16527) on a timm vision transformer.

By default attention is global in every block, without relative positions and stochastic depth. The recipe's vit_window,
vit_relative and drop_path give those of the paper; windows and relative positions are timm's VisionTransformerSAM.
"""

import logging
from functools import partial
from typing import Any, cast

from timm.layers.mlp import Mlp
from timm.models.vision_transformer import Block, VisionTransformer
from timm.models.vision_transformer_sam import VisionTransformerSAM
from torch import Tensor, nn

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.build import build
from sslbench.backbones.resnet import ResNet
from sslbench.detection.models.fpn import coarsest
from sslbench.detection.models.layers import Conv, Norm, freeze, make_norm
from sslbench.detection.recipe import DETR, DetectionRecipe
from sslbench.errors import UsageError

log = logging.getLogger("sslbench")

STRIDES = (4, 8, 16, 32, 64)
LEVELS = (2, 3, 4, 5)
"""Logarithms of the strides of all maps but the coarsest, which is pooled."""


class SimplePyramid(nn.Module):
    """Feature pyramid with maps of strides 4 to 64, or of some of these, from the last map of a vision transformer."""

    def __init__(
        self,
        net: VisionTransformer | VisionTransformerSAM,
        patch: int,
        out: int,
        norm: Norm,
        levels: tuple[int, ...] = LEVELS,
    ) -> None:
        """Set up the pyramid for a transformer, its patch side (8 or 16), and the pyramid's channels, norm and maps."""
        super().__init__()
        self.net, self.levels = net, levels
        for level in levels:
            stride = 1 << level
            layers, width = _rescale(int(net.embed_dim), patch / stride, norm)
            layers += [Conv(width, out, 1, norm=norm), Conv(out, out, 3, norm=norm)]
            self.add_module(f"simfp_{level}", nn.Sequential(*layers))

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return the maps, finest first, of images (B, channels, H, W) with sides divisible by 32."""
        maps = cast(list[Tensor], self.net.forward_intermediates(images, indices=1, intermediates_only=True))
        results = [self.get_submodule(f"simfp_{level}")(maps[0]) for level in self.levels]
        return [*results, coarsest(results[-1])] if self.levels == LEVELS else results


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


def simple_pyramid(backbone: Backbone, recipe: DetectionRecipe, levels: tuple[int, ...] = LEVELS) -> SimplePyramid:
    """Build the pyramid of a resolved recipe on a vision transformer.

    Positions are resampled to the size of each batch. Patches of 8 and 16 pixels are kept; others are resampled to 16,
    so that the strides of the maps are powers of two (timm's `resample_patch_embed`, Beyer et al.
    2023, FlexiViT).

    Raises:
        UsageError: the backbone is no plain vision transformer of timm.
    """
    if backbone.kind.users or not isinstance(backbone.module, VisionTransformer):
        instead = "deformable_detr" if recipe.architecture in DETR else "fpn or c4"
        other = f" For ResNets use architecture={instead}." if isinstance(backbone.module, ResNet) else ""
        raise UsageError(
            f"architecture={recipe.architecture} needs a vision transformer of timm, and {backbone.name} is none",
            f"For example timm:vit_base_patch16_224.{other}",
        )
    dropped = f",drop_path_rate={recipe.drop_path}" if recipe.drop_path else ""
    net = build(f"{backbone.name},dynamic_img_size=True{dropped}").module
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
    trunk = _windowed(net, patch, backbone.name, recipe) if recipe.vit_window or recipe.vit_relative else net
    trunk.requires_grad_(True)
    if recipe.freeze_at == 5:
        freeze(trunk)
    norm: Norm = recipe.norm if recipe.pyramid_norm == "same" else recipe.pyramid_norm or "none"
    return SimplePyramid(trunk, patch, recipe.pyramid_channels, norm, levels)


def global_blocks(depth: int) -> tuple[int, ...]:
    """Return the blocks with global attention: the last of each quarter (section 3 of the paper).

    >>> global_blocks(12)
    (2, 5, 8, 11)
    """
    return tuple(sorted({-(-depth * quarter // 4) - 1 for quarter in range(1, 5)}))


def _windowed(net: VisionTransformer, patch: int, name: str, recipe: DetectionRecipe) -> VisionTransformerSAM:
    """Return the transformer with windows and relative positions; class and register tokens are left out.

    Relative positions begin at 0 and reach over images of max_size_train; absolute ones keep their own grid.
    """
    first = cast(Block, net.blocks[0])
    attention, mlp = cast(Any, first.attn), cast(Mlp, first.mlp)  # timm moves the class of the former
    windows = recipe.vit_window or 0
    side = -(-recipe.max_size_train // patch) * patch
    trunk = VisionTransformerSAM(
        img_size=side,
        patch_size=patch,
        in_chans=net.in_chans,
        num_classes=0,
        embed_dim=net.embed_dim,
        depth=len(net.blocks),
        num_heads=attention.num_heads,
        mlp_ratio=cast(nn.Linear, mlp.fc1).out_features / net.embed_dim,
        qkv_bias=attention.qkv.bias is not None,
        init_values=None if isinstance(first.ls1, nn.Identity) else 1.0,  # the weights are copied
        pre_norm=not isinstance(net.norm_pre, nn.Identity),
        drop_path_rate=recipe.drop_path,
        norm_layer=partial(nn.LayerNorm, eps=cast(nn.LayerNorm, first.norm1).eps),  # type: ignore[arg-type]
        act_layer=type(mlp.act),
        use_abs_pos=net.pos_embed is not None,
        use_rel_pos=recipe.vit_relative,
        window_size=windows,
        global_attn_indexes=global_blocks(len(net.blocks)) if windows else (),
        neck_chans=None,  # type: ignore[arg-type]
    )
    trunk.neck = nn.Identity()  # type: ignore[assignment]
    state = {n: t for n, t in net.state_dict().items() if n not in ("cls_token", "reg_token", "pos_embed")}
    if net.pos_embed is not None:
        height, width = net.patch_embed.grid_size
        positions = net.pos_embed.detach()[:, -height * width :]
        trunk.pos_embed = nn.Parameter(positions.reshape(1, height, width, -1).clone())
        state["pos_embed"] = trunk.pos_embed.detach()
    new = {n for n in trunk.state_dict() if n.endswith((".rel_pos_h", ".rel_pos_w"))}
    missing, unexpected = set(trunk.state_dict()) - set(state) - new, set(state) - set(trunk.state_dict())
    if missing or unexpected:
        raise UsageError(
            f"{name} has no form with windows or relative positions: it differs in {min(missing | unexpected)}",
            "Leave out vit_window and vit_relative.",
        )
    trunk.load_state_dict(state, strict=False)
    return trunk
