"""Semantic segmentation by heads trained on frozen features, as DINOv2 and DINOv3 report it.

Oquab et al., "DINOv2", 2023, section 7.4: BatchNorm and a 1 x 1 convolution on the patches of the last layer, or of
the last four with averages over scales and flips ("+ms"); AdamW, 40,000 updates of 16 crops of 512 pixels; the
logits of sliding windows, enlarged to the label map, are scored by the IoU of each class over the whole data set.

Differences from their code, each a setting: the loss is averaged over the pixels that count (`loss_average=all` for
theirs), the learning rate is chosen on a held-out part of train, and small data get fewer updates and smaller crops.
Ignored pixels are in neither loss nor score, a label that is no class is refused, and a class that is neither labelled
nor predicted is left out of the means.
"""

import dataclasses
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from sslbench.arrays import BoolArray, ByteArray, FloatArray
from sslbench.config import setting
from sslbench.data.groups import source_groups
from sslbench.data.maps.colours import class_colours, labelled
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.metrics.dense import contours, panoptic, segmentation
from sslbench.metrics.intervals import Units, Values
from sslbench.metrics.summary import summarise, with_intervals
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.dense import DenseProtocol, HeadSettings
from sslbench.protocols._parts.dense.classes import as_label, check_classes, class_cells, notes_on_classes, read_classes
from sslbench.protocols._parts.dense.task import Cells, DenseRow
from sslbench.protocols.protocol import Protocol
from sslbench.solvers.dense import Average
from sslbench.solvers.dense.losses import pixel_cross_entropy
from sslbench.solvers.upsampling import upsampled_classes
from sslbench.targets.label_maps import IGNORED, LabelMaps
from sslbench.targets.target import Target

if TYPE_CHECKING:
    from torch import Tensor

    from sslbench.data.loading.joint import PixelTarget

_RESAMPLES = 1000


@dataclasses.dataclass(frozen=True)
class Settings(HeadSettings):
    """Settings of semantic segmentation by trained heads."""

    most_of_one_class: float = setting(
        0.75,
        "a crop in which one class fills a larger share is drawn again, up to ten times (cat_max_ratio)",
        within="(0, 1]",
    )
    loss_average: Average = setting(
        "scored", "divisor of the loss: scored: pixels that count; all: ignored pixels too, as in MMSegmentation"
    )
    boundary: float = setting(
        0.0075,
        "tolerance of the boundary F-score, as a share of the image's diagonal; 0: not computed",
        within="[0, 1)",
    )
    panoptic: bool = setting(
        False,
        "panoptic quality, where the label maps know instances: those of the prediction are the connected regions of "
        "each class that has instances in train",
    )


@dataclasses.dataclass(frozen=True)
class Segmentation(DenseProtocol[Settings]):
    """Classes of pixels, as logits (C, h, w).

    The row of an image has its areas (3, C), then counts (4, C) of the boundaries and of the segments, where these are
    asked for.

    Attributes:
        classes: names of the C classes.
        things: (C,), True for classes with instances; None without panoptic quality.
    """

    name = "segmentation"
    takes = LabelMaps
    needs = "needs a class for every pixel"
    stored = ("classes",)
    advice = "Give data with label maps: images/ and masks/, ADE20K, Cityscapes, Pascal VOC, a manifest with masks."

    classes: tuple[str, ...]
    things: BoolArray | None = None

    @classmethod
    def check(cls, settings: Settings, train: Target) -> None:
        """Refuse settings and labels that cannot work, before anything else is opened."""
        super().check(settings, train)
        check_classes(cls.name, train)

    @classmethod
    def of(cls, settings: Settings, train: Source, preprocessing: Preprocessing, seed: int) -> Self:
        """Return the task of the classes of train."""
        return cls(settings, train.target.classes, things_of(train) if settings.panoptic else None)

    @property
    def outputs(self) -> int:
        """Classes."""
        return len(self.classes)

    @property
    def most_of_one(self) -> float:
        """Largest share of one class in a crop."""
        return self.settings.most_of_one_class

    def read(self, source: Source, index: int, size: tuple[int, int] | None = None) -> "PixelTarget":
        """Return the classes of the pixels and, with `things`, numbers of their instances, float32 (1 or 2, H, W)."""
        classes = read_classes(source, index, size)
        if self.things is None:
            return classes
        instances = LabelMaps.of(source.target).maps.read_map(index, size=size).instances
        if instances is None:
            return np.concatenate([classes, np.zeros_like(classes)])
        # With 0 appended, no instance is number 0 also where every pixel has one.
        _, number = np.unique(np.append(instances, 0), return_inverse=True)  # large ids are no float32
        return np.concatenate([classes, number[:-1].reshape(classes.shape).astype(np.float32)])

    def cells(self, target: "PixelTarget", grid: tuple[int, int]) -> Cells:
        """Return the pixels of each class in the cells of a grid, and all that count."""
        return class_cells(self.outputs, target, grid)

    def check_totals(self, part: str, sums: FloatArray) -> None:
        """Refuse a train part with one class."""
        if part == "train" and np.count_nonzero(sums) < 2:
            raise DataError(
                "segmentation needs two classes, and all counted pixels of train belong to one",
                "`sslbench check-data` shows the classes of the pixels; a binary task needs its background as a class.",
            )

    def loss(self, outputs: "Tensor", targets: "Tensor", update: int) -> "Tensor":
        """Return the cross-entropy of the pixels that count."""
        labels = targets[:, 0].nan_to_num(nan=IGNORED).long()
        return pixel_cross_entropy(outputs, labels, ignore=IGNORED, average=self.settings.loss_average)

    def averaged(self, outputs: "Tensor") -> "Tensor":
        """Return probabilities of classes."""
        return outputs.softmax(dim=1)

    def row(self, output: "Tensor", target: "PixelTarget") -> FloatArray:
        """Return areas (3, C), and boundary and segment counts (4, C), of an image as one row."""
        label, n_classes = as_label(target), self.outputs
        predicted = self.predicted(output, target).astype(np.int64)
        found: list[npt.NDArray[np.number]] = [
            segmentation.class_areas(predicted, label, n_classes, ignore=(IGNORED,)).ravel()
        ]
        if tolerance := self.settings.boundary:
            pixels = contours.tolerance_pixels(label.shape[0], label.shape[1], tolerance)
            counts = contours.boundary_counts(predicted, label, n_classes, ignore=(IGNORED,), tolerance=pixels)
            found.append(counts.ravel())
        if self.things is not None:
            own = panoptic.segments_of(predicted, regions(predicted, self.things), self.things)
            true = panoptic.segments_of(label, target[1].astype(np.int64), self.things)
            found.append(panoptic.panoptic_counts(own, true, n_classes).ravel())
        return np.concatenate(found).astype(np.float64)

    def predicted(self, output: "Tensor", target: "PixelTarget") -> npt.NDArray[np.unsignedinteger]:
        """Return the class of highest score of each pixel, (H, W)."""
        size = (target.shape[1], target.shape[2])
        return upsampled_classes(output, size).cpu().numpy().astype(np.min_scalar_type(self.outputs - 1))

    def drawn(self, output: "Tensor", target: "PixelTarget") -> tuple[ByteArray, ByteArray]:
        """Return the classes of the pixels and the predicted ones in colours; pixels that do not count are grey."""
        colours = class_colours(self.outputs)
        return labelled(as_label(target), colours), labelled(self.predicted(output, target), colours)

    def caption(self, value: float) -> str:
        """Return the mean IoU of an image."""
        return f"IoU {100 * value:.0f} %"

    def value(self, rows: FloatArray) -> float:
        """Return the mean IoU."""
        return float(segmentation.segmentation_values(self._parts(rows)["areas"].sum(axis=0))[0])

    def known(self, rows: FloatArray) -> BoolArray:
        """Return True for the images with a pixel that counts."""
        return np.asarray(self._parts(rows)["areas"][:, 2].any(axis=1))

    def metrics(self, rows: FloatArray, test: Source, seed: int) -> tuple[Values, str, dict[str, float]]:
        """Return metrics with intervals over images, the name of the leading one, and the IoU of each class."""
        groups = source_groups(test)
        metrics, leading, per_class = summarise(
            LabelMaps, test.target.classes, test.target.values, self.scores(rows), seed=seed, groups=groups
        )
        units, parts = Units.of(len(rows), groups), self._parts(rows)
        if "boundary" in parts:
            measure = contours.boundary_measure(parts["boundary"].astype(np.int64), units)
            metrics |= with_intervals(measure, units, seed, _RESAMPLES)
        if "panoptic" in parts:
            metrics |= with_intervals(panoptic.panoptic_measure(parts["panoptic"], units), units, seed, _RESAMPLES)
        return metrics, leading, per_class

    def values(self, rows: FloatArray) -> dict[str, float]:
        """Return the metrics of rows, without intervals."""
        parts = {name: part.sum(axis=0) for name, part in self._parts(rows).items()}
        values = segmentation.segmentation_values(parts["areas"]).tolist()
        found = dict(zip((metric.name for metric in segmentation.SEGMENTATION), values, strict=True))
        if "boundary" in parts:
            found[contours.BOUNDARY_F.name] = float(np.nanmean(contours.boundary_f(parts["boundary"])))
        if "panoptic" in parts:
            quality = panoptic.panoptic_values(parts["panoptic"]).tolist()
            found |= dict(zip((metric.name for metric in panoptic.PANOPTIC), quality, strict=True))
        return found

    def scores(self, rows: FloatArray) -> npt.NDArray[np.float32]:
        """Return the areas (N, 3 * C)."""
        return rows[:, : 3 * self.outputs].astype(np.float32)

    def notes(self, row: DenseRow, test: Source) -> list[str]:
        """Return remarks on the classes that train or test lack, and on instances."""
        in_test: BoolArray = np.asarray(self._parts(row.rows)["areas"][:, 2].any(axis=0))
        notes = notes_on_classes(test.target.classes, row.train_mean > 0, in_test)
        if self.things is not None:
            notes.append(
                "Predicted instances are the connected regions of a class: no head tells touching objects apart."
            )
        return notes

    def _parts(self, rows: FloatArray) -> dict[str, FloatArray]:
        """Return areas (N, 3, C), and counts of boundaries and segments (N, 4, C), of rows (N, R)."""
        names = ["areas"]
        names += ["boundary"] if self.settings.boundary else []
        names += [] if self.things is None else ["panoptic"]
        ends = self.outputs * (3 + 4 * np.arange(len(names) - 1))
        found = np.split(rows, ends, axis=1)
        return {name: part.reshape(len(rows), -1, self.outputs) for name, part in zip(names, found, strict=True)}


def things_of(train: Source) -> BoolArray:
    """Return True for the classes that have instances in the label maps of train, (C,)."""
    found = np.zeros(len(train.target.classes), dtype=np.bool_)
    for index in range(len(train)):
        label = LabelMaps.of(train.target).maps.read_map(index)
        if label.instances is not None:
            own = label.semantic[(label.instances != 0) & (label.semantic != IGNORED)]
            found[np.unique(own)] = True
    if not found.any():
        raise UsageError(
            f"segmentation: panoptic=true needs label maps that know instances, and those of {train.name} do not",
            "Leave it out, or give a manifest with masks, COCO's panoptic annotations or Cityscapes' instanceIds.",
        )
    return found


def regions(predicted: npt.NDArray[np.integer], things: BoolArray) -> npt.NDArray[np.int64]:
    """Return a number per connected region of each class of things (8 neighbours), (H, W); 0 elsewhere."""
    import cv2

    numbers = np.zeros(predicted.shape, dtype=np.int64)
    for c in np.unique(predicted[things[predicted]]).tolist():
        _, own = cv2.connectedComponents((predicted == c).astype(np.uint8))
        numbers = np.where(own > 0, own, numbers)
    return numbers


PROTOCOL = Protocol(
    version=1,
    summary="semantic segmentation: heads trained on frozen features of patches.",
    settings=Settings,
    kind=Segmentation.kind(),
)
