"""Settings of the segmentation protocol."""

import dataclasses

from sslbench.config import setting
from sslbench.protocols._parts.dense.settings import HeadSettings
from sslbench.solvers.dense import Average


@dataclasses.dataclass(frozen=True)
class Settings(HeadSettings):
    """Settings of semantic segmentation by trained heads."""

    most_of_one_class: float = setting(
        0.75, "a crop in which one class fills a larger share is drawn again, up to ten times (cat_max_ratio)"
    )
    loss_average: Average = setting(
        "scored", "divisor of the loss: scored: pixels that count; all: ignored pixels too, as in MMSegmentation"
    )
    boundary: float = setting(
        0.0075, "tolerance of the boundary F-score, as a share of the image's diagonal; 0: not computed"
    )
    panoptic: bool = setting(
        False,
        "panoptic quality, where the label maps know instances: those of the prediction are the connected regions of "
        "each class that has instances in train",
    )
