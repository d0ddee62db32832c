"""Numbers for every pixel: depth, surface normals, and boundaries by annotators."""

import dataclasses
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray
from sslbench.metrics.dense import contours, depth, normals
from sslbench.metrics.intervals import Units
from sslbench.metrics.measure import Measure, Probabilities
from sslbench.targets.target import Rows, WithoutValues


class PixelValues(Protocol):
    """Numbers for the pixels of N images, read one by one, from any process (an implementation must be picklable)."""

    def __len__(self) -> int: ...

    def read_values(self, index: int, *, size: tuple[int, int] | None = None) -> npt.NDArray[np.float32]:
        """Return float32 (H, W, K) of an image whose upright height and width are `size`; NaN where it is unknown.

        Raises:
            UnreadableImage: there are no complete values.
            DataError: they do not fit the image, or are impossible.
        """
        ...

    def path(self, index: int) -> str:
        """Return the name of the values in messages."""
        ...

    def select(self, indices: IntArray) -> "PixelValues":
        """Return the values at `indices`, in that order."""
        ...

    def fingerprint(self) -> str:
        """Return a hash of the values, 32 hex digits."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class ReadValues(WithoutValues):
    """Numbers for every pixel, from files.

    Attributes:
        pixels: of N images.
    """

    of_rows = ("pixels",)
    of_pixels = True
    classes = ()
    sized = True
    pixels: PixelValues

    def content_key(self) -> bytes:
        """Return the key of the values."""
        return ("pixel values" + self.pixels.fingerprint()).encode()


class Depth(ReadValues):
    """A depth for every pixel, (H, W, 1), in metres as a rule."""

    name = "depth"
    title = "a depth for every pixel"
    default = ("skimage:motorcycle", "a stereo picture of a motorcycle, cut into tiles")
    metric = "depth_rmse"
    given_columns = depth.COLUMNS

    @classmethod
    def measures(cls, values: Rows, scores: Rows, units: Units, how: Probabilities | None = None) -> list[Measure]:
        """Return the metrics of depth."""
        return depth.measures_of_rows(scores.astype(np.float64))


class Normals(ReadValues):
    """A surface normal for every pixel, (H, W, 3)."""

    name = "normals"
    title = "a surface normal for every pixel"
    default = ("skimage:motorcycle", "a stereo picture of a motorcycle, cut into tiles")
    metric = "angle_mean"
    given_columns = normals.COLUMNS

    @classmethod
    def measures(cls, values: Rows, scores: Rows, units: Units, how: Probabilities | None = None) -> list[Measure]:
        """Return the metrics of normals."""
        return normals.measures_of_rows(scores.astype(np.float64))


class Boundaries(ReadValues):
    """Boundaries by K annotators, (H, W, K), 0 and 1."""

    name = "boundaries"
    title = "boundaries by annotators"
    default = ("textures:images", "outlines of drawn textures")
    metric = "boundary_ods"
    given_columns = contours.COLUMNS

    @classmethod
    def measures(cls, values: Rows, scores: Rows, units: Units, how: Probabilities | None = None) -> list[Measure]:
        """Return the metrics of boundaries."""
        return [contours.contour_measure(scores.astype(np.float64))]
