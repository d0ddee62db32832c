"""Anomalies: images of categories, good or anomalous, with masks of their defects."""

import dataclasses
from typing import Protocol, Self

from sslbench.arrays import BoolArray, IntArray
from sslbench.metrics.dense import anomaly
from sslbench.metrics.intervals import Units
from sslbench.metrics.measure import Measure, Probabilities
from sslbench.targets.label_maps import PixelLabels
from sslbench.targets.target import Rows, Target


class Regions(Protocol):
    """Regions of the defects of images, with the pixels after which each is found."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kind of anomaly of each image, such as logical_anomalies; '' for good images."""
        ...

    def read_regions(self, index: int) -> list[tuple[BoolArray, int]]:
        """Return mask (H, W) and number of pixels of each region of an image."""

    def select(self, rows: IntArray) -> Self:
        """Return those of some images."""


@dataclasses.dataclass(frozen=True, eq=False)
class Anomalies(Target):
    """Good and anomalous images.

    Attributes:
        classes: categories: products, objects or materials, of which each has a memory of its own.
        values: int64 (N, 2), the position in `classes`, and 1 for an anomalous image.
        maps: 1 for the pixels of a defect, -1 where they are not known; None where only values were stored.
        regions: of the defects, which the fingerprint of the maps contains; None where they do not saturate.
    """

    of_rows = ("values", "maps", "regions")
    name = "anomalies"
    title = "masks of defects, or none"
    metric = anomaly.IMAGE_AUROC.name
    of_pixels = True
    sized = True
    given_columns = anomaly.SCORE_COLUMNS
    default = ("textures:anomalies", "drawn textures")
    classes: tuple[str, ...]
    values: IntArray
    maps: PixelLabels | None = None
    regions: Regions | None = None

    def content_key(self) -> bytes:
        """Return the key of the maps."""
        return b"" if self.maps is None else ("maps" + self.maps.fingerprint()).encode()

    def size_text(self) -> str:
        """Return the number of categories."""
        number = len(self.classes)
        return f"{number} {'category' if number == 1 else 'categories'}, anomalies"

    def text(self, index: int) -> str:
        """Return the category of a sample, and whether it is anomalous."""
        category, anomalous = self.values[index]
        return f"{self.classes[category]}: {'anomalous' if anomalous else 'good'}"

    @classmethod
    def measures(cls, values: Rows, scores: Rows, units: Units, how: Probabilities | None = None) -> list[Measure]:
        """Return the metrics of images; those of pixels follow from no score of an image."""
        return anomaly.image_measures(values, scores, units)

    @classmethod
    def per_class(cls, values: Rows, scores: Rows, classes: int) -> list[float]:
        """Return the area under the ROC curve of each category."""
        return anomaly.image_auroc_of_each(values, scores, classes)
