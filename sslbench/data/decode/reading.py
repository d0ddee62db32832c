"""How images are read; apart from the decoder, since what lists images should not have to load what decodes them."""

import dataclasses

from sslbench.preprocessing import MAX_PIXELS
from sslbench.runtime.workers import StartMethod


@dataclasses.dataclass(frozen=True)
class Reading:
    """How images are read where no backbone says what it takes: for training, and to check them.

    Attributes:
        decoder: names of functions of the user's that decode; see `sslbench.data.decode.handlers`.
        max_pixels: larger pictures count as unreadable.
        start_method: of the worker processes.
    """

    decoder: tuple[str, ...] = ()
    max_pixels: int = MAX_PIXELS
    start_method: StartMethod = "auto"


DEFAULT = Reading()
