"""Settings of `eval saliency`."""

import dataclasses

from sslbench.config import setting
from sslbench.protocols._parts.map_settings import Fit, SearchSettings


@dataclasses.dataclass(frozen=True)
class Settings(SearchSettings):
    """Settings of unsupervised saliency."""

    fit: Fit = setting("resize", "resize images to the nearest multiple of the patch, or pad them to the next one")
