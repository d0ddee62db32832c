"""Masks of the foreground."""

import dataclasses
from typing import ClassVar, Self

import numpy as np

from sslbench.arrays import IntArray
from sslbench.metrics.dense import discovery
from sslbench.metrics.intervals import Units
from sslbench.metrics.measure import Measure, Probabilities
from sslbench.targets.label_maps import PixelLabels, ReadMaps
from sslbench.targets.target import Rows


@dataclasses.dataclass(frozen=True, eq=False)
class Foreground(ReadMaps):
    """Foreground (1) or background (0) for every pixel, -1 where it does not count."""

    name: ClassVar[str] = "mask"
    title: ClassVar[str] = "a mask of the foreground"
    default: ClassVar[tuple[str, str]] = ("textures:images", "drawn textures")
    metric: ClassVar[str] = "saliency_max_f"
    of_pixels: ClassVar[bool] = True
    given_columns: ClassVar[tuple[str, ...]] = discovery.SALIENCY_COLUMNS
    classes = ("background", "foreground")
    maps: PixelLabels

    def select(self, indices: IntArray) -> Self:
        """Return the masks of the images at `indices`."""
        return self.changed(maps=self.maps.select(indices))

    @classmethod
    def measures(cls, values: Rows, scores: Rows, units: Units, how: Probabilities | None = None) -> list[Measure]:
        """Return the metrics of saliency."""
        return discovery.saliency_measures(scores.astype(np.float64))
