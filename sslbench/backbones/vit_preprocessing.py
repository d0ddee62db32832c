"""How the authors of a weights format prepare images for its vision transformers."""

from typing import Literal

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.vit_recognise import recognise_vit
from sslbench.preprocessing import Preprocessing

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

# Evaluation transforms of the authors' repositories: ImageNet's mean and standard deviation, shorter side to 256,
# the middle 224 x 224.
_IMAGENET: dict[str, Literal["bilinear", "bicubic"]] = {
    "dino": "bicubic",
    "dinov2": "bicubic",
    "dinov2_chunked12": "bicubic",
    "dinov2_chunked24": "bicubic",
    "dinov2_chunked40": "bicubic",
    "dinov2_swiglu": "bicubic",
    "huggingface_dinov2": "bicubic",
    "huggingface_dinov2_swiglu": "bicubic",
    "ibot": "bicubic",
    "mae": "bicubic",
    "mmpretrain_vit": "bicubic",
    "moco_v3_vit": "bilinear",
    "msn": "bicubic",
    "simmim": "bicubic",
}


def vit_preprocessing(backbone: Backbone, format: str, *, named: bool) -> Preprocessing:  # format: as the flag
    """How images are made for a backbone that has been loaded.

    What the format says comes first, unless the backbone's name has one of timm's tags (`vit_base_patch16_224.augreg`).
    Then, for an architecture that was recognised and not named by the user, ImageNet's values: timm's for a name
    without a tag are those of its own AugReg weights, which a file without tag is seldom. All else stays as it is.

    Args:
        backbone: as built.
        format: whose key names the weights have.
        named: the user gave the backbone's name.
    """
    size = getattr(getattr(backbone.module, "patch_embed", None), "img_size", None)
    name, _, _ = backbone.name.partition(",")
    tagged = "." in name and (named or format == "sslbench")
    if backbone.builder != "timm" or not size or size[0] != size[1] or tagged:
        return backbone.preprocessing
    shapes = {name: tuple(tensor.shape) for name, tensor in backbone.module.state_dict().items()}
    if recognise_vit(shapes) is None:
        return backbone.preprocessing
    found = preprocessing_of(format, size[0])
    return found or (backbone.preprocessing if named else assumed_preprocessing(format, size[0]))


def preprocessing_of(format: str, size: int) -> Preprocessing | None:  # the name of the command-line flag
    """The evaluation transform of a format at `size` pixels; None when the format says nothing about it."""
    if format in _IMAGENET:
        resize = round(size * 256 / 224)
        return Preprocessing(resize, (size, size), _IMAGENET[format], origin=f"{format}: its evaluation transform")
    if format in ("openai_clip", "open_clip"):
        return Preprocessing(size, (size, size), "bicubic", CLIP_MEAN, CLIP_STD, origin=f"{format}: CLIP's transform")
    return None


def assumed_preprocessing(format: str, size: int) -> Preprocessing:
    """ImageNet's values, for formats that many kinds of weights use: what self-supervised ViTs were trained with.

    timm's own AugReg weights, and Google's, take 0.5 for mean and standard deviation; key names do not tell them apart.
    """
    resize = round(size * 256 / 224)
    origin = f"ImageNet default (format {format} does not say)"
    return Preprocessing(resize, (size, size), "bicubic", origin=origin)
