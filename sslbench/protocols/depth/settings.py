"""Settings of the depth protocol."""

import dataclasses
from typing import Literal

from sslbench.config import setting
from sslbench.data.views import MapColours
from sslbench.protocols._parts.dense.settings import Enlarge, HeadSettings
from sslbench.solvers.dense import Normalisation, Spacing

Scored = Literal["all", "nyu", "garg", "eigen", "garg_kitti", "eigen_kitti"]
Align = Literal["none", "median", "affine"]


@dataclasses.dataclass(frozen=True)
class Settings(HeadSettings):
    """Settings of depth by trained heads."""

    upsample: int = setting(4, "factor by which the maps are enlarged before the head, to cells of 3 pixels at least")
    lr: tuple[float, ...] = setting(
        (1e-4, 3e-4, 1e-3), "learning rates; a head is trained with each and the best is selected"
    )
    betas: tuple[float, float] = setting((0.9, 0.99), "decay rates of AdamW's averages")
    clip_norm: float | None = setting(35.0, "largest norm of a head's gradient; null: any")
    steps: int = setting(38_400, "updates, at most", unit="updates")
    warmup_steps: int = setting(12_800, "updates of linear warm-up, of `steps`", unit="updates", part_of="steps")
    schedule: Literal["poly", "cosine", "constant"] = setting("cosine", "schedule of lr: poly, cosine or constant")
    size: int | None = setting(480, "short side of the resized images; null: their own", unit="pixels")
    enlarge: Enlarge = setting(
        "trained",
        "small images: none: size and crop shrink to the data's short side; trained: but not below the side of the "
        "images that the backbone was trained on; size: images are enlarged to size",
    )
    resize_range: tuple[float, float] = setting((1.0, 1.0), "range of a random factor of the size in training")
    crop: tuple[int, int] = setting((416, 416), "height and width of the crops", unit="pixels")
    colours: MapColours = setting(
        "gamma", "photometric: brightness, contrast, saturation, hue as SSD; gamma: as BTS; none"
    )
    rotation: float = setting(2.5, "largest rotation in training, of half of the crops", unit="degrees")
    window: tuple[int, int] | None = setting(
        None, "height and width of the sliding window in scoring; null: the whole image", unit="pixels"
    )
    flip_test: bool = setting(True, "average depths with those of the mirrored image")
    min_depth: float | None = setting(
        None, "smallest depth of bins and of scored pixels; null: bins from the smallest of train, all scored", unit="m"
    )
    max_depth: float | None = setting(
        None, "largest depth of bins and of scored pixels; null: bins to the largest of train, all scored", unit="m"
    )
    bins: int = setting(256, "depth bins of a head, whose expectation is the depth")
    spacing: Spacing = setting("uniform", "distances of the bins: uniform or logarithmic")
    shares: Normalisation = setting("linear", "shares of the bins: linear (relu + 0.1), softmax or sigmoid")
    gradient: float = setting(0.0, "weight of the gradient loss beside SigLoss")
    mean_steps: int = setting(
        0, "first updates, of `steps`, in which SigLoss has only its mean term", unit="updates", part_of="steps"
    )
    train_region: tuple[int, int, int, int] | None = setting(
        None, "left, top, right and bottom of the part of training images that is used", unit="pixels"
    )
    scored: Scored = setting(
        "all",
        "region of scored pixels: all; nyu (45:471, 41:601 of 480 x 640); garg or eigen of the whole image, or of "
        "KITTI's 352 x 1216 in it (garg_kitti, eigen_kitti)",
    )
    align: Align = setting(
        "none",
        "median or affine: metrics after alignment to the true depth of each image, too, under names of their own",
    )
