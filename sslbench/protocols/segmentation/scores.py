"""Classes of pixels as a dense task, and the outcome of a row of its scores.

Shapes: N images, C classes; the row of an image has its areas (3, C), then counts (4, C) of the boundaries and of the
segments, where these are asked for.
"""

import functools

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from sslbench.arrays import BoolArray, FloatArray
from sslbench.data.groups import source_groups
from sslbench.data.label_map import IGNORED
from sslbench.data.loading.joint import Target
from sslbench.data.maps.colours import class_colours, labelled
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.metrics.dense import boundary, panoptic, segmentation
from sslbench.metrics.intervals import Units
from sslbench.metrics.summary import summarise, with_intervals
from sslbench.protocols._parts.dense.classes import as_label, class_cells, notes_on_classes, read_classes
from sslbench.protocols._parts.dense.run import DenseRow
from sslbench.protocols._parts.dense.task import DenseTask
from sslbench.protocols.segmentation.settings import Settings
from sslbench.results import Outcome
from sslbench.solvers.dense.losses import pixel_cross_entropy
from sslbench.solvers.upsampling import upsampled_classes

_RESAMPLES = 1000


def task(train: Source, settings: Settings) -> DenseTask:
    """Return the task of the classes of train.

    Raises:
        UsageError: panoptic quality of maps that do not know instances.
    """
    n_classes = len(train.labels.classes)
    things = things_of(train) if settings.panoptic else None
    return DenseTask(
        name="segmentation",
        outputs=n_classes,
        read=read_classes if things is None else read_instances,
        loss=functools.partial(_loss, settings.loss_average),
        row=functools.partial(_row, settings.boundary, things),
        value=functools.partial(_mean_iou, n_classes),
        cells=functools.partial(class_cells, n_classes),
        drawn=_drawn,
        caption=lambda iou: f"IoU {100 * iou:.0f} %",
        averaged=functools.partial(torch.softmax, dim=1),
        check_totals=_check_totals,
    )


def read_instances(source: Source, index: int, size: tuple[int, int]) -> Target:
    """Return the classes of the pixels and the numbers of their instances, float32 (2, H, W); see `read_classes`."""
    classes = read_classes(source, index, size)
    instances = None if source.maps is None else source.maps.read_map(index, size=size).instances
    if instances is None:
        return np.concatenate([classes, np.zeros_like(classes)])
    _, number = np.unique(np.append(instances, 0), return_inverse=True)  # large ids are no float32
    return np.concatenate([classes, number[:-1].reshape(classes.shape).astype(np.float32)])


def things_of(train: Source) -> BoolArray:
    """Return True for the classes that have instances in the label maps of train, (C,).

    Raises:
        UsageError: none has.
    """
    found = np.zeros(len(train.labels.classes), dtype=np.bool_)
    for index in range(len(train)):
        label = None if train.maps is None else train.maps.read_map(index)
        if label is not None and label.instances is not None:
            own = label.semantic[(label.instances != 0) & (label.semantic != IGNORED)]
            found[np.unique(own)] = True
    if not found.any():
        raise UsageError(
            f"segmentation: panoptic=true needs label maps that know instances, and those of {train.name} do not",
            "Leave it out, or give a manifest with masks, COCO's panoptic annotations or Cityscapes' instanceIds.",
        )
    return found


def outcome(row: DenseRow, test: Source, settings: Settings, *, seed: int) -> Outcome:
    """Return metrics with intervals over images, IoU of each class, and floors, of the scores of a row."""
    classes, groups = test.labels.classes, source_groups(test)
    parts = _parts(row.rows, len(classes), settings)
    areas = parts["areas"].reshape(len(test), -1).astype(np.float32)
    metrics, headline, per_class = summarise("map", classes, test.labels.values, areas, seed=seed, groups=groups)
    units = Units.of(len(test), groups)
    if "boundary" in parts:
        measure = boundary.boundary_measure(parts["boundary"].astype(np.int64), units)
        metrics |= with_intervals(measure, units, seed, _RESAMPLES)
    if "panoptic" in parts:
        metrics |= with_intervals(panoptic.panoptic_measure(parts["panoptic"], units), units, seed, _RESAMPLES)
    floors = {name: _values(rows, len(classes), settings) for name, rows in row.floors.items()}
    in_test: BoolArray = np.asarray(parts["areas"][:, 2].any(axis=0))
    notes = [*row.notes, *notes_on_classes(classes, row.train_mean > 0, in_test)]
    if "panoptic" in parts:
        notes.append("Predicted instances are the connected regions of a class: no head tells touching objects apart.")
    return Outcome(
        metrics=metrics,
        headline=headline,
        scores=areas,
        per_class=per_class,
        train=row.train,
        selected=row.selected,
        chance=floors.pop("constant"),
        floors=floors,
        notes=tuple(notes),
        picture=row.picture,
        scored=int(parts["areas"][:, 2].any(axis=1).sum()),
    )


def _parts(rows: FloatArray, n_classes: int, settings: Settings) -> dict[str, FloatArray]:
    """Return areas (N, 3, C), and counts of boundaries and segments (N, 4, C), of rows (N, R)."""
    names = ["areas", *(["boundary"] if settings.boundary else []), *(["panoptic"] if settings.panoptic else [])]
    ends = np.cumsum([3 * n_classes, *[4 * n_classes] * (len(names) - 1)])[:-1]
    found = np.split(rows, ends, axis=1)
    return {name: part.reshape(len(rows), -1, n_classes) for name, part in zip(names, found, strict=True)}


def _loss(average: str, outputs: Tensor, targets: Tensor, update: int) -> Tensor:
    """Return the cross-entropy of the pixels that count."""
    labels = targets[:, 0].nan_to_num(nan=IGNORED).long()
    return pixel_cross_entropy(outputs, labels, ignore=IGNORED, average="all" if average == "all" else "scored")


def _row(tolerance: float, things: BoolArray | None, output: Tensor, target: Target) -> FloatArray:
    """Return areas (3, C), and boundary and segment counts (4, C), of an image as one row."""
    label = as_label(target)
    height, width = label.shape
    predicted = upsampled_classes(output, (height, width)).cpu().numpy()
    n_classes = len(output)
    found: list[npt.NDArray[np.number]] = [
        segmentation.class_areas(predicted, label, n_classes, ignore=(IGNORED,)).ravel()
    ]
    if tolerance:
        pixels = boundary.tolerance_pixels(height, width, tolerance)
        counts = boundary.boundary_counts(predicted, label, n_classes, ignore=(IGNORED,), tolerance=pixels)
        found.append(counts.ravel())
    if things is not None:
        own = panoptic.segments_of(predicted, _regions(predicted, things), things)
        true = panoptic.segments_of(label, target[1].astype(np.int64), things)
        found.append(panoptic.panoptic_counts(own, true, n_classes).ravel())
    return np.concatenate(found).astype(np.float64)


def _drawn(output: Tensor, target: Target) -> tuple[Image.Image, Image.Image]:
    """Return the classes of the pixels and the predicted ones in colours; pixels that do not count are grey."""
    label = as_label(target)
    predicted = upsampled_classes(output, (label.shape[0], label.shape[1])).cpu().numpy()
    colours = class_colours(len(output))
    return labelled(label, colours), labelled(predicted, colours)


def _regions(predicted: npt.NDArray[np.integer], things: BoolArray) -> npt.NDArray[np.int64]:
    """Return a number per connected region of each class of things (8 neighbours), (H, W); 0 elsewhere."""
    import cv2

    numbers = np.zeros(predicted.shape, dtype=np.int64)
    for c in np.unique(predicted[things[predicted]]).tolist():
        _, own = cv2.connectedComponents((predicted == c).astype(np.uint8))
        numbers = np.where(own > 0, own, numbers)
    return numbers


def _mean_iou(n_classes: int, rows: FloatArray) -> float:
    areas = rows[:, : 3 * n_classes].sum(axis=0).reshape(3, n_classes)
    return float(segmentation.segmentation_values(areas)[0])


def _values(rows: FloatArray, n_classes: int, settings: Settings) -> dict[str, float]:
    """Return the metrics of rows, without intervals."""
    parts = {name: part.sum(axis=0) for name, part in _parts(rows, n_classes, settings).items()}
    values = segmentation.segmentation_values(parts["areas"]).tolist()
    found = dict(zip((metric.name for metric in segmentation.SEGMENTATION), values, strict=True))
    if "boundary" in parts:
        found[boundary.BOUNDARY_F.name] = float(np.nanmean(boundary.boundary_f(parts["boundary"])))
    if "panoptic" in parts:
        quality = panoptic.panoptic_values(parts["panoptic"]).tolist()
        found |= dict(zip((metric.name for metric in panoptic.PANOPTIC), quality, strict=True))
    return found


def _check_totals(part: str, pixels: FloatArray) -> None:
    """Refuse a train part with one class.

    Raises:
        DataError: the train part has one class.
    """
    if part == "train" and np.count_nonzero(pixels) < 2:
        raise DataError(
            "segmentation needs two classes, and all counted pixels of train belong to one",
            "`sslbench check-data` shows the classes of the pixels; a binary task needs its background as a class.",
        )
