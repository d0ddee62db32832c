"""Settings of image reading, apart from the decoder, so that listing images does not load torch."""

import dataclasses

from sslbench.preprocessing import MAX_PIXELS
from sslbench.runtime.workers import StartMethod


@dataclasses.dataclass(frozen=True)
class Reading:
    """Settings of image reading without a backbone's preprocessing: in training and in data checks.

    Attributes:
        decoder: names of the user's decoding functions; see `sslbench.data.decode.handlers`.
        max_pixels: size limit; larger pictures are unreadable.
        start_method: of the worker processes.
    """

    decoder: tuple[str, ...] = ()
    max_pixels: int = MAX_PIXELS
    start_method: StartMethod = "auto"


DEFAULT = Reading()
