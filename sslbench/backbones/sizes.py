"""Image sizes that a backbone takes, and the length of its vectors."""

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.build import build
from sslbench.backbones.vit.of_timm import has_patch_embed, is_timm_vit
from sslbench.backbones.vit.positions import fit_positions
from sslbench.errors import UsageError, WeightsError
from sslbench.weights.fill import fill

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer


def built_for(backbone: Backbone, size: tuple[int, int] | None) -> Backbone:
    """Return the backbone as it takes images of `size`, where it was built for one other size.

    A timm model of one image size (a vision transformer) is built anew with its position embeddings resampled as its
    authors do; its name says so ('timm:vit_small_patch14_dinov2,img_size=224'). All other backbones are returned as
    they are.

    Args:
        backbone: any; not changed.
        size: (height, width) of all images; None: it differs from image to image.

    Raises:
        UsageError: the backbone cannot take such images.
    """
    embed = getattr(backbone.module, "patch_embed", None)
    built = getattr(embed, "img_size", None)
    if built is None or not getattr(embed, "strict_img_size", False) or size == tuple(built):
        return backbone
    given = "images of their own sizes" if size is None else f"images of {size[0]}x{size[1]}"
    problem = f"{backbone.name} takes images of {built[0]}x{built[1]}, but the preprocessing gives {given}"
    if "img_size" not in backbone.kind.options or size is None or size[0] != size[1]:
        raise UsageError(problem, f"Give --crop {built[0]}, or a backbone for any size: dynamic_img_size=True.")
    architecture, *options = backbone.name.split(",")
    name = ",".join([architecture, *(option for option in options if not option.startswith("img_size="))])
    fitted = build(f"{name},img_size={size[0]}")
    tensors, notes = fit_positions(backbone.module.state_dict(), fitted.module)
    try:
        fill(fitted.module, tensors, what=backbone.name)
    except WeightsError as error:
        raise UsageError(problem, f"Its tensors do not fit another size: {error.message}") from error
    report = backbone.report and dataclasses.replace(backbone.report, casts=(*backbone.report.casts, *notes))
    return dataclasses.replace(fitted, preprocessing=backbone.preprocessing, report=report, format=backbone.format)


def accept_sizes(backbone: nn.Module, sizes: tuple[int, ...], *, name: str, channels: int = 3) -> None:
    """Make a backbone accept square images of all `sizes`.

    A timm vision transformer that was built for one size is told to interpolate its positions for the others, as with
    `dynamic_img_size=True`; its parameters stay as they are.

    Raises:
        UsageError: the backbone cannot take one of the sizes.
    """
    if is_timm_vit(backbone) and has_patch_embed(backbone):
        built = backbone.patch_embed.img_size
        if built is not None and any((size, size) != tuple(built) for size in sizes):
            _interpolate_positions(backbone)
    for size in dict.fromkeys(sizes):
        try:
            feature_dim(backbone, size, channels)
        except (AssertionError, RuntimeError, ValueError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UsageError(
                f"the backbone {name} cannot take views of {size} x {size} pixels: {reason}",
                "Choose other sizes (augment.size, augment.small_size) or a backbone that takes several: a ResNet, a "
                "timm ViT whose patch size divides them, timm:NAME,dynamic_img_size=True where timm has that option.",
            ) from error


def _interpolate_positions(vit: "VisionTransformer") -> None:
    """Set up a vision transformer as timm's constructor does for dynamic_img_size=True."""
    from timm.layers.format import Format

    vit.dynamic_img_size = True  # type: ignore[misc]  # final for TorchScript only, unused here
    vit.patch_embed.strict_img_size = False
    vit.patch_embed.flatten = False
    vit.patch_embed.output_fmt = Format.NHWC


def feature_dim(backbone: nn.Module, size: int, channels: int = 3) -> int:
    """Return the length of a backbone's vector for an image of `size` x `size` pixels; the backbone is unchanged.

    Raises:
        ValueError: it does not give one vector per image.
    """
    mode = backbone.training
    device = next((p.device for p in backbone.parameters()), torch.device("cpu"))
    backbone.eval()
    try:
        with torch.no_grad():
            output = backbone(torch.zeros(2, channels, size, size, device=device))
    finally:
        backbone.train(mode)
    if not isinstance(output, Tensor) or output.dim() != 2:
        got = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(f"a backbone must return one vector per image, (B, D); for 2 images it returned {got}")
    return int(output.shape[1])
