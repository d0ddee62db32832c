"""Classes of pixels as targets: their reading, and the counts of the survey."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sslbench.arrays import BoolArray
from sslbench.data.source import Source
from sslbench.data.wording import some
from sslbench.errors import DataError
from sslbench.protocols._parts.dense.task import Cells
from sslbench.solvers.in_context import class_counts
from sslbench.targets.label_maps import IGNORED, LabelMaps
from sslbench.targets.target import Target

if TYPE_CHECKING:
    from sslbench.data.loading.joint import PixelTarget


def check_classes(protocol: str, train: Target) -> None:
    """Refuse label maps of one class."""
    if len(train.classes) < 2:
        raise DataError(
            f"{protocol} needs two classes, and all pixels of the maps belong to '{', '.join(train.classes)}'",
            "If it means ignored (255), nothing is labelled: `sslbench check-data` shows the values.",
        )


def read_classes(source: Source, index: int, size: tuple[int, int] | None = None) -> "PixelTarget":
    """Return the classes of the pixels of an image, float32 (1, H, W), nan where they do not count."""
    label = LabelMaps.of(source.target).maps.read_map(index, size=size).semantic
    classes = label.astype(np.float32)
    classes[label == IGNORED] = np.nan
    return classes[None]


def as_label(target: "PixelTarget") -> npt.NDArray[np.int32]:
    """Return the classes (H, W) of a target, `IGNORED` where they do not count."""
    return np.where(np.isnan(target[0]), IGNORED, target[0]).astype(np.int32)


def notes_on_classes(classes: Sequence[str], in_train: BoolArray, in_test: BoolArray) -> list[str]:
    """Return notes on a single class, on classes (C,) without pixels in test, and on those of test without in train."""
    notes = []
    for part, present in (("train", in_train), ("test", in_test)):
        if present.sum() == 1:
            name = classes[int(np.argmax(present))]
            notes.append(f"All counted pixels of {part} belong to '{name}': the score says nothing about the network.")
    if absent := int((~in_test).sum()):
        notes.append(f"{absent} classes have no pixel in test and count only where they are predicted.")
    if unlearned := [classes[i] for i in np.flatnonzero(in_test & ~in_train).tolist()]:
        verb = "class of test has" if len(unlearned) == 1 else "classes of test have"
        notes.append(
            f"{len(unlearned)} {verb} no pixel in train, so none is predicted right, which counts 0 in the means over "
            f"classes: {some(unlearned, 5)}."
        )
    return notes


def class_cells(n_classes: int, target: "PixelTarget", grid: tuple[int, int]) -> Cells:
    """Return the pixels of each class (C, h, w) and all counted ones (h, w) in the cells of a grid."""
    counts = class_counts(as_label(target), grid, n_classes, ignore=(IGNORED,)).T.reshape(n_classes, *grid)
    return counts.astype(np.float64), counts.sum(axis=0).astype(np.float64)
