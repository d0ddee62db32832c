"""Settings of image reading, apart from the decoder, so that listing images does not load torch."""

import dataclasses
from typing import Literal

from sslbench.preprocessing import MAX_PIXELS

StartMethod = Literal["auto", "fork", "spawn", "forkserver"]
"""Start method of worker processes; see multiprocessing's documentation."""


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
