"""Settings of the protocol on boundaries."""

import dataclasses

from sslbench.config import setting
from sslbench.data.views import MapColours
from sslbench.metrics.dense.contours import TOLERANCE
from sslbench.protocols._parts.dense.settings import HeadSettings


@dataclasses.dataclass(frozen=True)
class Settings(HeadSettings):
    """Settings of boundaries by trained heads. Images of BSDS500 keep their size."""

    consensus: float = setting(
        0.5, "share of the annotators that makes a boundary in training; pixels that fewer mark do not count"
    )
    tolerance: float = setting(TOLERANCE, "largest distance of matched pixels as a share of the image's diagonal")
    size: int | None = setting(
        321, "short side of the resized images (larger ones lose pixels of lines in training); null: own", unit="pixels"
    )
    crop: tuple[int, int] = setting((321, 321), "height and width of the crops", unit="pixels")
    window: tuple[int, int] | None = setting(
        None, "height and width of the sliding window in scoring; null: the whole image", unit="pixels"
    )
    resize_range: tuple[float, float] = setting((1.0, 1.0), "range of a random factor of the size in training")
    colours: MapColours = setting(
        "none", "photometric: brightness, contrast, saturation, hue as SSD; gamma: as BTS; none"
    )
