"""Settings of the protocol on low-level signals."""

import dataclasses

from sslbench.config import setting
from sslbench.data.loading.joint import Colours
from sslbench.data.signals import Signal
from sslbench.protocols._parts.dense.settings import HeadSettings


@dataclasses.dataclass(frozen=True)
class Settings(HeadSettings):
    """Settings of the regression of signals by trained heads; images are not changed but mirrored."""

    signal: Signal = setting("edges", "edges: strength of the gradient; corners: Shi and Tomasi's")
    sigma: float = setting(2.0, "standard deviation of the Gaussian of the structure tensor", unit="pixels")
    size: int | None = setting(224, "short side of the resized images; null: their own", unit="pixels")
    crop: tuple[int, int] = setting((224, 224), "height and width of the crops", unit="pixels")
    window: tuple[int, int] | None = setting(
        (224, 224), "height and width of the sliding window in scoring; null: the whole image", unit="pixels"
    )
    stride: tuple[int, int] = setting((149, 149), "step of the sliding window", unit="pixels")
    resize_range: tuple[float, float] = setting((1.0, 1.0), "range of a random factor of the size in training")
    colours: Colours = setting(
        "none", "none; photometric or gamma would change images and not their signals: see segmentation"
    )
