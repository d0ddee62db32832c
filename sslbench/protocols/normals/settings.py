"""Settings of the protocol of surface normals."""

import dataclasses
from typing import Literal

from sslbench.config import setting
from sslbench.data.views import MapColours
from sslbench.protocols._parts.dense.settings import Enlarge, HeadSettings


@dataclasses.dataclass(frozen=True)
class Settings(HeadSettings):
    """Settings of surface normals by trained heads."""

    upsample: int = setting(4, "factor by which the maps are enlarged before the head, to cells of 3 pixels at least")
    weight_decay: float = setting(1e-2, "weight decay of AdamW")
    steps: int = setting(38_400, "updates, at most", unit="updates")
    warmup_steps: int = setting(5_760, "updates of linear warm-up, of `steps`", unit="updates", part_of="steps")
    schedule: Literal["poly", "cosine", "constant"] = setting("cosine", "schedule of lr: poly, cosine or constant")
    size: int | None = setting(480, "short side of the resized images; null: their own", unit="pixels")
    enlarge: Enlarge = setting(
        "trained",
        "small images: none: size and crop shrink to the data's short side; trained: but not below the side of the "
        "images that the backbone was trained on; size: images are enlarged to size",
    )
    resize_range: tuple[float, float] = setting((1.0, 1.0), "range of a random factor of the size in training")
    crop: tuple[int, int] = setting((480, 480), "height and width of the crops", unit="pixels")
    colours: MapColours = setting(
        "gamma", "photometric: brightness, contrast, saturation, hue as SSD; gamma: as BTS; none"
    )
    window: tuple[int, int] | None = setting(
        None, "height and width of the sliding window in scoring; null: the whole image", unit="pixels"
    )
    uncertainty: bool = setting(
        True,
        "predict a concentration per pixel, too, and train by its negative log-likelihood; false: by the mean angle",
    )
