"""Label maps: a class, or foreground and background, for every pixel."""

import dataclasses
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray
from sslbench.metrics.dense import discovery, segmentation
from sslbench.metrics.dense.pooling import counts_of_rows
from sslbench.metrics.intervals import Units
from sslbench.metrics.measure import Measure, Probabilities
from sslbench.targets.target import Rows, WithoutValues

Grid = npt.NDArray[np.int32]
"""(H, W)."""

IGNORED, UNKNOWN = -1, -2
"""Classes of ignored pixels, and of values that are no class."""


@dataclasses.dataclass(frozen=True, eq=False)
class LabelMap:
    """Label map of one image.

    Attributes:
        semantic: int32 (H, W), position in the source's classes; -1: the pixel does not count.
        instances: int32 (H, W), 0: no instance, else a number that differs between the instances of the image; None if
            nothing tells instances apart.
    """

    semantic: Grid
    instances: Grid | None


class PixelLabels(Protocol):
    """Label maps of N images, read one by one, from any process (an implementation must be picklable)."""

    def __len__(self) -> int: ...

    def read_map(self, index: int, *, size: tuple[int, int] | None = None) -> LabelMap:
        """Return the map of an image whose upright height and width are `size`.

        Raises:
            UnreadableImage: there is no complete map.
            DataError: it does not fit the image or the classes.
        """
        ...

    def select(self, indices: IntArray) -> "PixelLabels":
        """Return the maps at `indices`, in that order."""
        ...

    def fingerprint(self) -> str:
        """Return a hash of the maps and their classes, 32 hex digits."""
        ...


class ClassAreas(WithoutValues):
    """Targets whose scores are the areas of each class in an image: intersection, prediction and label, (N, 3 * C)."""

    @classmethod
    def columns(cls, classes: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of the areas of all classes."""
        return tuple(f"{area} {name}" for area in segmentation.AREAS for name in classes)

    @classmethod
    def measures(cls, values: Rows, scores: Rows, units: Units, how: Probabilities | None = None) -> list[Measure]:
        """Return the metrics of segmentation."""
        return segmentation.segmentation_measures(counts_of_rows(scores), units)

    @classmethod
    def per_class(cls, values: Rows, scores: Rows, classes: int) -> list[float]:
        """Return the IoU of every class."""
        return list(map(float, segmentation.iou(counts_of_rows(scores).sum(axis=0))))


class ReadMaps(WithoutValues):
    """Targets that are maps of images.

    Attributes:
        maps: of N images.
    """

    of_rows = ("maps",)
    sized = True
    maps: PixelLabels

    def content_key(self) -> bytes:
        """Return the key of the maps."""
        return ("maps" + self.maps.fingerprint()).encode()


@dataclasses.dataclass(frozen=True, eq=False)
class LabelMaps(ReadMaps, ClassAreas):
    """A class for every pixel, -1 where a pixel does not count."""

    name = "map"
    title = "a class for every pixel"
    default = ("textures:images", "drawn textures")
    metric = "mIoU"
    of_pixels = True
    classes: tuple[str, ...]
    maps: PixelLabels


@dataclasses.dataclass(frozen=True, eq=False)
class Foreground(ReadMaps):
    """Foreground (1) or background (0) for every pixel, -1 where it does not count."""

    name = "mask"
    title = "a mask of the foreground"
    default = ("textures:images", "drawn textures")
    metric = "saliency_max_f"
    of_pixels = True
    given_columns = discovery.SALIENCY_COLUMNS
    classes = ("background", "foreground")
    maps: PixelLabels

    @classmethod
    def measures(cls, values: Rows, scores: Rows, units: Units, how: Probabilities | None = None) -> list[Measure]:
        """Return the metrics of saliency."""
        return discovery.saliency_measures(scores.astype(np.float64))
