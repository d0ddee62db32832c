"""Settings of an extraction."""

import dataclasses
from typing import TYPE_CHECKING, Literal

from sslbench.runtime.resources import EncodingPrecision, Precision, StartMethod, float_precision

if TYPE_CHECKING:
    import torch


@dataclasses.dataclass(frozen=True)
class ExtractSettings:
    """Settings of an extraction; only `precision` and `dtype` change the features.

    Attributes:
        device: device of the backbone.
        precision: precision of the computation.
        dtype: dtype of the stored features.
        batch_size: images per forward pass.
        workers: number of decoding processes; 0: decode in this one.
        on_error: 'stop' raises with a list of all unreadable images, 'skip' leaves their rows out.
        start_method: start method of the workers.
    """

    device: "torch.device"
    precision: EncodingPrecision = "fp32"
    dtype: Literal["float32", "float16"] = "float32"
    batch_size: int = 64
    workers: int = 2
    on_error: Literal["stop", "skip"] = "stop"
    start_method: StartMethod = "auto"

    def float_precision(self) -> Precision:
        """Return the precision of networks that are trained or give maps.

        Raises:
            UsageError: the precision is int8.
        """
        return float_precision(self.precision)
