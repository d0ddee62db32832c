"""Speed of a network on this device, from a few of the data's own images."""

import dataclasses
import time
from collections.abc import Sequence

import numpy as np
import torch

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layers import Layer
from sslbench.backbones.speed import prepare
from sslbench.data.decode import transforms
from sslbench.data.loading import loader
from sslbench.data.source import Source
from sslbench.errors import SslbenchError
from sslbench.evaluation.request import RunSettings
from sslbench.runtime.device import DTYPES
from sslbench.runtime.seeds import preserved_random_states

_SAMPLES = (4, 12, 48)  # images of a measurement, in turn, as long as there is time
_MEASURED = 0.4  # seconds of the measurement of a network


@dataclasses.dataclass(frozen=True)
class Rate:
    """Speed of a network on this device.

    Attributes:
        seconds: seconds per image, decoding included.
        widths: layer -> number of its features.
        start: seconds to prepare int8; 0 in other precisions.
    """

    seconds: float
    widths: dict[str, int]
    start: float = 0.0


def measure_rate(backbone: Backbone, source: Source, layers: Sequence[Layer], run: RunSettings) -> Rate | None:
    """Return the time per image on this device, from decoding and encoding a few images; None if that fails."""
    settings = run.extract_settings()
    device, dtype = settings.device, DTYPES[settings.precision]
    try:
        with preserved_random_states(device):
            started = time.perf_counter()
            encode = prepare(backbone, layers, device=device, precision=settings.precision)
            start = time.perf_counter() - started if backbone.calibration is not None else 0.0  # seconds to minutes
            began, places = time.perf_counter(), np.linspace(0, len(source) - 1, min(len(source), sum(_SAMPLES)))
            decoding = encoding = float("inf")
            widths: dict[str, int] = {}
            rows = np.unique(places.astype(np.int64))
            for count in _SAMPLES:
                chosen, rows = rows[:count], rows[count:]
                if not len(chosen) or (widths and time.perf_counter() - began > _MEASURED):
                    break
                started = time.perf_counter()
                batches = list(
                    loader.batches(
                        source, chosen, backbone.preprocessing, batch_size=count, workers=0, mixed_sizes=True
                    )
                )
                decoded = time.perf_counter()
                for images in (batch.images for batch in batches if len(batch.indices)):
                    inputs = transforms.normalise(images.to(device), backbone.preprocessing, dtype, torch.channels_last)
                    found = {name: x.float().cpu() for name, x in encode(inputs).items()}
                    widths = {name: x.shape[1] for name, x in found.items()}
                # Pages and kernels are cold in the first batch.
                decoding = min(decoding, (decoded - started) / len(chosen))
                encoding = min(encoding, (time.perf_counter() - decoded) / len(chosen))
    except SslbenchError:
        return None  # the extraction tells the reason
    if not widths:
        return None
    together = decoding + encoding if not settings.workers else max(decoding / settings.workers, encoding)
    return Rate(together, widths, start)
