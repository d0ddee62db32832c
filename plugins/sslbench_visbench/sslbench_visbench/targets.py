"""Targets: signals and orientations of pixels, and pairs of images with the relative pose of their cameras."""

import dataclasses
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray
from sslbench.metrics.intervals import Units
from sslbench.metrics.measure import Measure, Probabilities
from sslbench.targets.pixel_values import PixelValues
from sslbench.targets.target import Images, Rows, WithoutValues
from sslbench.targets.triplets import Placed
from sslbench_visbench import metrics


@dataclasses.dataclass(frozen=True, eq=False)
class Signals(WithoutValues):
    """Signals of pixels, (H, W, 1): read from files, or computed from the images.

    Attributes:
        classes: name of the signal; 'signal' if it is computed.
        count: number of images.
        pixels: of the same images; None: computed.
    """

    name: ClassVar[str] = "signal"
    title: ClassVar[str] = "signals of pixels"
    metric: ClassVar[str] = "signal_correlation"
    of_pixels: ClassVar[bool] = True
    given_columns: ClassVar[tuple[str, ...]] = metrics.SIGNAL_COLUMNS
    default: ClassVar[tuple[str, str]] = ("textures:images", "drawn textures")
    count: int
    classes: tuple[str, ...] = ("signal",)
    pixels: PixelValues | None = None

    def __len__(self) -> int:
        return self.count

    @property
    def sized(self) -> bool | None:  # type: ignore[override]
        """True for files, which say the size of their images."""
        return None if self.pixels is None else True

    def select(self, indices: IntArray) -> Self:
        """Return the signals of the images at `indices`."""
        pixels = None if self.pixels is None else self.pixels.select(indices)
        return self.changed(count=len(indices), pixels=pixels)

    def content_key(self) -> bytes:
        """Return the key of the files."""
        return b"" if self.pixels is None else ("pixel values" + self.pixels.fingerprint()).encode()

    @classmethod
    def measures(cls, values: Rows, scores: Rows, units: Units, how: Probabilities | None = None) -> list[Measure]:
        """Return the metrics of signals."""
        return metrics.signal_measures(scores.astype(np.float64))


@dataclasses.dataclass(frozen=True, eq=False)
class Orientations(WithoutValues):
    """Orientations of structures for every pixel, computed from the images.

    Attributes:
        count: number of images.
    """

    name: ClassVar[str] = "orientation"
    title: ClassVar[str] = "orientations computed from the images"
    metric: ClassVar[str] = "orientation_error"
    of_pixels: ClassVar[bool] = True
    given_columns: ClassVar[tuple[str, ...]] = metrics.ORIENTATION_COLUMNS
    default: ClassVar[tuple[str, str]] = ("textures:images", "drawn textures")
    classes = ("orientation",)
    count: int

    def __len__(self) -> int:
        return self.count

    def select(self, indices: IntArray) -> "Orientations":
        """Return the orientations of as many images as there are indices."""
        return Orientations(len(indices))

    @classmethod
    def measures(cls, values: Rows, scores: Rows, units: Units, how: Probabilities | None = None) -> list[Measure]:
        """Return the metrics of orientations."""
        return metrics.orientation_measures(scores.astype(np.float64))


@dataclasses.dataclass(frozen=True, eq=False)
class CameraPairs(Placed):
    """Pairs among M images.

    Attributes:
        classes: names of the numbers: of a quaternion, and perhaps of a translation.
        values: float64 (N, 4) or (N, 7).
        images: M images, each of them once.
        places: (N, 2), positions of the first and the second image.
        sized: the annotations say which side of an image is the longer one, and it is.
    """

    name: ClassVar[str] = "camera_pairs"
    title: ClassVar[str] = "pairs of images with a relative pose"
    metric: ClassVar[str] = "rotation_error"
    given_columns: ClassVar[tuple[str, ...]] = metrics.POSE_COLUMNS
    of_numbers: ClassVar[bool] = True
    default: ClassVar[tuple[str, str]] = ("rotations:textures:images", "drawn textures under rotations of a camera")
    classes: tuple[str, ...]
    values: npt.NDArray[np.float64]
    images: Images
    places: IntArray
    sized: bool = False

    def text(self, index: int) -> str:
        """Return the numbers, joined by ';'."""
        return ";".join(repr(float(value)) for value in self.values[index])

    @classmethod
    def measures(cls, values: Rows, scores: Rows, units: Units, how: Probabilities | None = None) -> list[Measure]:
        """Return the errors of rotations and translations."""
        return metrics.pose_measures(scores.astype(np.float64), values.astype(np.float64))
