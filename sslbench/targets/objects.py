"""Boxes of objects, and perhaps their masks."""

import dataclasses
from typing import ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt

from sslbench.arrays import BoolArray, IntArray
from sslbench.metrics.dense import discovery
from sslbench.metrics.intervals import Units
from sslbench.metrics.measure import Measure, Probabilities
from sslbench.targets.target import Rows, WithoutValues


class ObjectLabels(Protocol):
    """Objects of N images, in order; `data.objects.types.ObjectSource` has them."""

    def __len__(self) -> int: ...

    @property
    def sized(self) -> bool:
        """True if annotations say the size of the images."""
        ...

    def boxes_of(self, index: int) -> npt.NDArray[np.float32]:
        """Return the boxes of an image, (n, 4), in pixels of the upright image, without regions of many objects."""
        ...

    def bitmaps_of(self, index: int, height: int, width: int) -> BoolArray | None:
        """Return the masks of the same objects, (n, height, width); None if one of them has no mask.

        Raises:
            DataError: the image has another size than its objects were annotated in, or a mask is damaged.
        """
        ...

    def counts(self) -> IntArray:
        """Return the number of objects of each class, (C,)."""
        ...

    def select(self, indices: IntArray) -> "ObjectLabels":
        """Return the objects of the images at `indices`, in that order."""
        ...

    def fingerprint(self) -> str:
        """Return a hash of the objects, 32 hex digits."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Boxes(WithoutValues):
    """Boxes of objects.

    Attributes:
        objects: of N images.
    """

    name: ClassVar[str] = "boxes"
    title: ClassVar[str] = "boxes of objects"
    default: ClassVar[tuple[str, str]] = ("textures:images", "drawn textures")
    metric: ClassVar[str] = "corloc"
    of_pixels: ClassVar[bool] = True
    given_columns: ClassVar[tuple[str, ...]] = discovery.DISCOVERY_COLUMNS
    classes: tuple[str, ...]
    objects: ObjectLabels

    def __len__(self) -> int:
        return len(self.objects)

    @property
    def sized(self) -> bool:
        """True if annotations say the size of the images."""
        return self.objects.sized

    def size_text(self) -> str:
        """Return the numbers of objects and classes."""
        return f"{int(self.objects.counts().sum())} objects, {len(self.classes)} classes"

    def select(self, indices: IntArray) -> Self:
        """Return the objects of the images at `indices`."""
        return self.changed(objects=self.objects.select(indices))

    def content_key(self) -> bytes:
        """Return the key of the objects."""
        return ("objects" + self.objects.fingerprint()).encode()

    @classmethod
    def measures(cls, values: Rows, scores: Rows, units: Units, how: Probabilities | None = None) -> list[Measure]:
        """Return the metrics of discovered objects."""
        return discovery.discovery_measures(scores.astype(np.float64))
