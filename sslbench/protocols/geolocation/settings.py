"""Settings of geolocation."""

import dataclasses

from sslbench.config import setting
from sslbench.protocols.linear.settings import GRID


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of geolocation."""

    max_images: int = setting(5000, "training images above which a cell is split into four")
    min_images: int = setting(50, "training images below which a cell, with its images, is left out of training")
    c: tuple[float, ...] = setting(
        GRID, "classifier of cells: candidates of the inverse regularisation, as for the protocol linear"
    )
    holdout: float = setting(0.2, "classifier of cells: share of train held out to select c")
