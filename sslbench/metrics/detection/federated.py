"""Data in which not every class was looked for in every image, as in LVIS (Gupta et al. 2019, section 3)."""

import dataclasses
from typing import Literal

import numpy as np
import numpy.typing as npt

from sslbench.arrays import BoolArray, IntArray

Frequency = Literal["r", "c", "f", ""]
"""Rare (in 1 to 10 training images), common (to 100), frequent; '' where the data do not say."""
FREQUENCIES: tuple[Frequency, ...] = ("r", "c", "f", "")


@dataclasses.dataclass(frozen=True, eq=False)
class Federated:
    """Classes that were looked for in N images, beside those that have objects there.

    Attributes:
        negative: int64 (n, 2), image and class: the class is not in the image.
        not_exhaustive: int64 (m, 2), image and class: not all of its objects in the image are labelled.
        frequencies: one per class.
    """

    negative: IntArray
    not_exhaustive: IntArray
    frequencies: tuple[Frequency, ...]

    def select(self, images: IntArray, n_images: int) -> "Federated":
        """Return the same of the images at these positions of `n_images`."""
        place = np.full(n_images, -1, dtype=np.int64)
        place[images] = np.arange(len(images))
        return dataclasses.replace(
            self, negative=_moved(self.negative, place, 0), not_exhaustive=_moved(self.not_exhaustive, place, 0)
        )

    def with_classes(self, moved: IntArray, n_classes: int) -> "Federated":
        """Return the same with other class numbers, `moved` (C,); -1 drops a class."""
        names: list[Frequency] = [""] * n_classes
        for old, new in enumerate(moved.tolist()):
            if new >= 0:
                names[new] = self.frequencies[old]
        return Federated(_moved(self.negative, moved, 1), _moved(self.not_exhaustive, moved, 1), tuple(names))


def _moved(pairs: IntArray, place: IntArray, column: int) -> IntArray:
    """Return the pairs with new numbers in a column, without those that have none."""
    found = pairs.reshape(-1, 2).copy()
    found[:, column] = place[found[:, column]]
    return np.asarray(found[found[:, column] >= 0], dtype=np.int64)


def among(pairs: IntArray, images: npt.NDArray[np.int64], labels: npt.NDArray[np.int64], n_classes: int) -> BoolArray:
    """Return for each image and label (n,) whether they are one of the pairs (m, 2)."""
    return np.isin(images * n_classes + labels, pairs[:, 0] * n_classes + pairs[:, 1])
