"""Names and variants of the AlexNets of self-supervised learning."""

import dataclasses
from collections.abc import Mapping

from sslbench.preprocessing import LIGHTNESS_MEAN, LIGHTNESS_STD, Preprocessing

_STANDARD_POOLS = {
    "conv1": "avg(19,4)", "conv2": "avg(12,3)", "conv3": "avg(9,1)", "conv4": "avg(9,1)", "conv5": "avg(8,1)",
}  # fmt: skip
_JIGSAW_POOLS = {
    "conv1": "avg(28,9)", "conv2": "avg(24,6)", "conv3": "avg(14,3)", "conv4": "avg(14,3)", "conv5": "avg(16,2)",
}  # fmt: skip
_ROTNET_POOLS = {
    "conv1": "adaptive-max(12,12)", "conv2": "adaptive-max(7,7)", "conv3": "adaptive-max(5,5)",
    "conv4": "adaptive-max(6,6)", "conv5": "adaptive-max(6,6)",
}  # fmt: skip
_SQUARE = (256, 256)


@dataclasses.dataclass(frozen=True)
class AlexNetSpec:
    """Architecture of one variant.

    Attributes:
        widths: output channels of the five convolutions.
        groups: of the second, fourth and fifth convolution (2 on the two GPUs of 2012).
        norms: true if each convolution has a BatchNorm.
        local_norm: true if the first two layers have a local response normalisation, before or after pooling.
        stride: of the first convolution.
        padding: of the first convolution.
        inputs: input of the first convolution: 'rgb', 'lightness' (one channel) or 'sobel' (two edge maps).
        preprocessing: transform of VISSL's linear benchmark.
        pools: layer -> the pool of VISSL's linear benchmark.
    """

    preprocessing: Preprocessing
    widths: tuple[int, ...] = (96, 256, 384, 384, 256)
    groups: int = 1
    norms: tuple[bool, ...] = (True,) * 5
    local_norm: str = ""
    stride: int = 4
    padding: int = 0
    inputs: str = "rgb"
    pools: Mapping[str, str] = dataclasses.field(default_factory=dict)


_USUAL = Preprocessing(origin="VISSL linear benchmark")
_SQUASHED_227 = Preprocessing(_SQUARE, (227, 227), origin="VISSL linear benchmark")


SPECS: Mapping[str, AlexNetSpec] = {
    # Krizhevsky et al. 2012 as in BVLC's Caffe: values 0 to 255 less the mean, no division
    "alexnet_bvlc": AlexNetSpec(
        dataclasses.replace(_SQUASHED_227, std=(1 / 255,) * 3),
        groups=2,
        norms=(False,) * 5,
        local_norm="before",
        pools=_STANDARD_POOLS,
    ),
    # Noroozi and Favaro 2016; Goyal et al. 2019: stride 2, for small patches
    "alexnet_jigsaw": AlexNetSpec(
        _SQUASHED_227,
        groups=2,
        norms=(False, False, True, True, True),
        local_norm="after",
        stride=2,
        pools=_JIGSAW_POOLS,
    ),
    # Zhang et al. 2016; Goyal et al. 2019
    "alexnet_colorization": AlexNetSpec(
        dataclasses.replace(_SQUASHED_227, resize=256, mean=LIGHTNESS_MEAN, std=LIGHTNESS_STD, space="lightness"),
        groups=2,
        inputs="lightness",
        pools=_STANDARD_POOLS,
    ),
    # Caron et al. 2018
    "alexnet_deepcluster": AlexNetSpec(_USUAL, padding=2, inputs="sobel", pools=_STANDARD_POOLS),
    "alexnet_deepcluster_rgb": AlexNetSpec(_USUAL, padding=2, pools=_STANDARD_POOLS),
    "alexnet_rotnet": AlexNetSpec(_USUAL, widths=(64, 192, 384, 256, 256), padding=2, pools=_ROTNET_POOLS),
}
NAMES = (*SPECS, "alexnet")
