"""Orientation of the structures of images by heads on frozen features: the direction of change at every pixel.

The target is computed from each image at its own size, so any images serve: the main direction of the structure tensor,
modulo 180 degrees, as a vector of doubled angle whose length is the coherence of the place (`signals`). A linear
head on the patches predicts the vector. The loss is the mean angle between vectors, weighted by coherence, and so is
the error, in degrees of the orientation from 0 to 90: a mean over images, lower is better, 45 at random.

VisBench 0.27 has this task by the same formulae, after resizing the image to 224 pixels.

Floors: a constant (the mean orientation of train); the mean orientation at each position; the same head on raw colours;
the untrained network.
"""

import colorsys
import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from sslbench.arrays import ByteArray, FloatArray
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.protocols._parts.dense.task import DenseRow, enlarged
from sslbench.protocols.protocol import Protocol
from sslbench.solvers.dense.losses import cosines
from sslbench_visbench.metrics import orientation_row
from sslbench_visbench.signals import SignalSettings, SignalTask, orientation_of
from sslbench_visbench.targets import Orientations

if TYPE_CHECKING:
    from torch import Tensor

    from sslbench.data.loading.joint import PixelTarget

_MOST_COSINE = 1 - 1e-4
"""Cosine at which the slope of the arcus cosine is still finite; VisBench has the same."""


@dataclasses.dataclass(frozen=True)
class Settings(SignalSettings):
    """Settings of the regression of orientations by trained heads."""

    def __post_init__(self) -> None:
        """Refuse rotations."""
        super().__post_init__()
        if self.rotation:
            raise UsageError(
                f"orientation: rotation={self.rotation:g} would turn the images and not their orientations"
            )


class Orientation(SignalTask[Settings]):
    """Orientations of pixels.

    An output is a vector of doubled angle (2, h, w) of any length; an image's row has the values
    `metrics.ORIENTATION_COLUMNS`.
    """

    name = "orientation"
    takes = Orientations
    needs = "computes its targets"
    outputs = 2

    def read(self, source: Source, index: int, size: tuple[int, int] | None = None) -> "PixelTarget":
        """Return the orientations of an image at its own size, float32 (2, H, W); see `orientation_of`."""
        return orientation_of(self.image(source, index), self.settings.sigma)

    def check_totals(self, part: str, sums: FloatArray) -> None:
        """Refuse a part without any orientation."""
        if not sums.any():
            raise DataError(f"orientation: every {part} image is of one colour, so there is no orientation to predict")

    def loss(self, outputs: "Tensor", targets: "Tensor", update: int) -> "Tensor":
        """Return the mean doubled angle in radians between vectors (B, 2, H, W), weighted by the length of the targets.

        Unknown pixels (NaN, the padding around a crop) have no weight; without any weight the loss is 0.

        >>> import torch
        >>> along_x, oblique = torch.tensor([2.0, 0.0]), torch.tensor([0.0, 0.5])  # 45 degrees apart
        >>> from sslbench.preprocessing import Preprocessing
        >>> task = Orientation(Settings(), Preprocessing())
        >>> round(float(task.loss(along_x[None, :, None, None], oblique[None, :, None, None], 0)), 4)
        1.5708
        """
        import torch

        targets = targets.nan_to_num()
        weights = torch.hypot(targets[:, 0], targets[:, 1])
        if not weights.any():
            return outputs.sum() * 0
        angle = cosines(outputs, targets).clamp(-_MOST_COSINE, _MOST_COSINE).acos()
        loss: Tensor = (weights * angle).sum() / weights.sum()
        return loss

    def averaged(self, outputs: "Tensor") -> "Tensor":
        """Return unit vectors (B, 2, H, W)."""
        from torch.nn.functional import normalize

        return normalize(outputs, dim=1)

    def mirrored(self, x: "Tensor") -> "Tensor":
        """Return orientations (..., 2, H, W) of a mirrored map: an angle t becomes 180 degrees - t, so the sine turns.

        >>> import torch
        >>> from sslbench.preprocessing import Preprocessing
        >>> task = Orientation(Settings(), Preprocessing())
        >>> task.mirrored(torch.tensor([0.5, 0.25]).reshape(2, 1, 1)).flatten().tolist()
        [0.5, -0.25]
        """
        sign = x.new_ones(2)
        sign[1] = -1
        return x * sign[:, None, None]

    def row(self, output: "Tensor", target: "PixelTarget") -> FloatArray:
        """Return the values of an image; vectors are enlarged to the target, bilinearly."""
        return orientation_row(enlarged(output, target).numpy(), target)

    def drawn(self, output: "Tensor", target: "PixelTarget") -> tuple[ByteArray, ByteArray]:
        """Return the true and the predicted orientations as hues, both as bright as the place is coherent."""
        bright = np.nan_to_num(np.hypot(*target)).clip(0, 1)
        return _hues(target, bright), _hues(enlarged(output, target).numpy(), bright)

    def caption(self, value: float) -> str:
        """Return the error of an image."""
        return f"{-value:.0f} degrees"

    def notes(self, row: DenseRow, test: Source) -> list[str]:
        """Return remarks on images without orientation, and on chance."""
        return [*super().notes(row, test), "Chance is the mean orientation of train."]


def _hues(vectors: "PixelTarget", bright: "PixelTarget") -> ByteArray:
    wheel = np.array([colorsys.hsv_to_rgb(place / 256, 1.0, 255.0) for place in range(256)])
    places = np.nan_to_num((np.arctan2(vectors[1], vectors[0]) / (2 * np.pi)) % 1 * 256).astype(np.int64) % 256
    return np.asarray((wheel[places] * bright[..., None]).round(), dtype=np.uint8)


PROTOCOL = Protocol(
    version=1,
    summary="orientation of structures: heads on frozen features predict the direction of change.",
    settings=Settings,
    kind=Orientation.kind(),
)
