"""Regression of low-level signals by heads on frozen features: a number at every pixel.

The signal is computed from the image itself, at its own size, so any images serve: the strength of edges or corners,
from the luminance of colours or the mean of any other channels. Or it is read from maps of numbers beside the images
(`--data 'taskonomy?maps=keypoints2d'`, see `signal_maps`). A linear head on the patches
predicts it (mean absolute error, AdamW), enlarged to the image by bilinear interpolation. The score is the correlation
over the pixels of an image, mean over images: a constant scores 0, whatever its error. What a grid of patches can
express at best is in no score: a finer grid scores higher.

Chen, Marks and Cheng, 2024 (arXiv 2411.17474) and VisBench compare networks by such tasks. VisBench computes corners by
the same formula, after resizing the image to 224 pixels; its edges, keypoints and edges of occlusion are maps of
Taskonomy (Zamir et al., CVPR 2018).

Floors: a constant; the mean signal at each position; the same head on raw colours; the untrained network.
"""

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from sslbench.arrays import BoolArray, ByteArray, FloatArray
from sslbench.config import setting
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.protocols._parts.dense.task import enlarged, grey
from sslbench.protocols.protocol import Protocol
from sslbench.targets.target import Target
from sslbench_visbench.metrics import signal_row
from sslbench_visbench.signals import Signal, SignalSettings, SignalTask, signal_of
from sslbench_visbench.targets import Signals

if TYPE_CHECKING:
    from torch import Tensor

    from sslbench.data.loading.joint import PixelTarget


@dataclasses.dataclass(frozen=True)
class Settings(SignalSettings):
    """Settings of the regression of signals by trained heads."""

    signal: Signal | None = setting(
        None,
        "edges: strength of the gradient; corners: Shi and Tomasi's; null: the maps of ?maps=NAME, otherwise edges",
    )


class LowLevel(SignalTask[Settings]):
    """Signals of pixels, (1, h, w); an image's row has the values `metrics.SIGNAL_COLUMNS`."""

    name = "low-level"
    takes = Signals
    needs = "predicts signals of pixels"
    outputs = 1

    @classmethod
    def check(cls, settings: Settings, train: Target) -> None:
        """Refuse settings that cannot work, before anything else is opened."""
        super().check(settings, train)
        if train.classes == ("signal",):
            return
        for name in ("signal", "sigma"):
            if getattr(settings, name) != getattr(Settings(), name):
                raise UsageError(
                    f"low-level: {name} has no effect on the maps of {train.classes[0]}/",
                    f"Leave out {name}=, or ?maps=.",
                )

    def read(self, source: Source, index: int, size: tuple[int, int] | None = None) -> "PixelTarget":
        """Return the signal of an image at its own size, float32 (1, H, W): from its file, or computed."""
        if (maps := Signals.of(source.target).pixels) is not None:
            return np.ascontiguousarray(np.moveaxis(maps.read_values(index, size=size), 2, 0))
        settings = self.settings
        return signal_of(self.image(source, index), settings.signal or "edges", settings.sigma)[None]

    def check_totals(self, part: str, sums: FloatArray) -> None:
        """Refuse a part without any signal."""
        if not sums.any():
            raise DataError(
                f"low-level: every {part} image is of one colour, or has a map of zeros, so there is no signal to "
                "predict"
            )

    def loss(self, outputs: "Tensor", targets: "Tensor", update: int) -> "Tensor":
        """Return the mean absolute error over the known pixels; padding around a crop is unknown."""
        from torch.nn.functional import l1_loss

        known = ~targets.isnan()
        return l1_loss(outputs[known], targets[known])

    def row(self, output: "Tensor", target: "PixelTarget") -> FloatArray:
        """Return correlation and errors of an image; the output is enlarged to the target, bilinearly."""
        return signal_row(enlarged(output, target)[0].numpy(), target[0])

    def drawn(self, output: "Tensor", target: "PixelTarget") -> tuple[ByteArray, ByteArray]:
        """Return the signal and the predicted one, white at the largest value of the signal."""
        high = float(np.nanmax(target))
        return grey(target[0], 0.0, high), grey(enlarged(output, target)[0].numpy(), 0.0, high)

    def caption(self, value: float) -> str:
        """Return the correlation of an image."""
        return f"correlation {value:.2f}"

    def value(self, rows: FloatArray) -> float:
        """Return the mean correlation over images, the leading metric."""
        return float(np.nanmean(rows[:, 0])) if self.known(rows).any() else math.nan

    def known(self, rows: FloatArray) -> BoolArray:
        """Return True for the images with a known pixel."""
        return np.asarray(~np.isnan(rows[:, 0]))

    def measured(self, rows: FloatArray) -> BoolArray:
        """Return True for all images: the metrics leave out rows of NaN."""
        return np.ones(len(rows), dtype=np.bool_)


PROTOCOL = Protocol(
    version=3,
    summary="low-level signals: heads on frozen features predict edges, corners or maps at every pixel.",
    settings=Settings,
    kind=LowLevel.kind(),
)
