"""Classes of pixels as a dense task, and the outcome of a row of its scores.

Shapes: N images, C classes; the row of an image has its areas (3, C) and, for the boundaries, counts (4, C).
"""

import functools

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sslbench.arrays import FloatArray, IntArray
from sslbench.data.groups import source_groups
from sslbench.data.label_map import IGNORED
from sslbench.data.loading.joint import Target
from sslbench.data.source import Source
from sslbench.errors import DataError
from sslbench.metrics.dense import boundary, segmentation
from sslbench.metrics.intervals import Units
from sslbench.metrics.summary import summarise, with_intervals
from sslbench.protocols._parts.dense import DenseRow, DenseTask
from sslbench.protocols.segmentation.settings import Settings
from sslbench.results import Outcome
from sslbench.solvers.dense.losses import pixel_cross_entropy
from sslbench.solvers.in_context import class_counts
from sslbench.solvers.upsampling import upsampled_classes

_RESAMPLES = 1000


def task(n_classes: int, settings: Settings) -> DenseTask:
    """Return the task of `n_classes` classes."""
    return DenseTask(
        name="segmentation",
        outputs=n_classes,
        read=read_classes,
        loss=functools.partial(_loss, settings.loss_average),
        row=functools.partial(_row, settings.boundary),
        value=functools.partial(_mean_iou, n_classes),
        cells=functools.partial(_cells, n_classes),
        averaged=functools.partial(torch.softmax, dim=1),
        check_totals=_check_totals,
    )


def read_classes(source: Source, index: int, size: tuple[int, int]) -> Target:
    """Return the classes of the pixels of an image, float32 (1, H, W), nan where they do not count.

    Raises:
        UnreadableImage: there is no complete map.
        DataError: it is of another size than the image, or has a value that is no class.
    """
    if source.maps is None:
        raise DataError(f"{source.name} has no label maps")
    label = source.maps.read_map(index, size=size).semantic
    classes = label.astype(np.float32)
    classes[label == IGNORED] = np.nan
    return classes[None]


def outcome(row: DenseRow, test: Source, settings: Settings, *, seed: int) -> Outcome:
    """Return metrics with intervals over images, IoU of each class, and floors, of the scores of a row."""
    classes, groups = test.labels.classes, source_groups(test)
    n_areas = 3 * len(classes)
    areas = row.rows[:, :n_areas].astype(np.float32)
    metrics, headline, per_class = summarise("map", classes, test.labels.values, areas, seed=seed, groups=groups)
    if settings.boundary:
        units = Units.of(len(test), groups)
        counts = row.rows[:, n_areas:].reshape(len(test), 4, -1).astype(np.int64)
        metrics |= with_intervals(boundary.boundary_measure(counts, units), units, seed, _RESAMPLES)
    floors = {name: _values(rows, len(classes)) for name, rows in row.floors.items()}
    absent = np.flatnonzero(~row.rows[:, 2 * len(classes) : n_areas].any(axis=0))
    notes = list(row.notes)
    if len(absent):
        notes.append(f"{len(absent)} classes have no pixel in test and count only where they are predicted.")
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
    )


def _loss(average: str, outputs: Tensor, targets: Tensor, update: int) -> Tensor:
    """Return the cross-entropy of the pixels that count."""
    labels = targets[:, 0].nan_to_num(nan=IGNORED).long()
    return pixel_cross_entropy(outputs, labels, ignore=IGNORED, average="all" if average == "all" else "scored")


def _row(tolerance: float, output: Tensor, target: Target) -> FloatArray:
    """Return areas (3, C) and boundary counts (4, C) of an image as one row."""
    label = _label(target)
    height, width = label.shape
    predicted = upsampled_classes(output, (height, width)).cpu().numpy()
    n_classes = len(output)
    areas = segmentation.class_areas(predicted, label, n_classes, ignore=(IGNORED,))
    if not tolerance:
        return areas.ravel().astype(np.float64)
    pixels = boundary.tolerance_pixels(height, width, tolerance)
    counts = boundary.boundary_counts(predicted, label, n_classes, ignore=(IGNORED,), tolerance=pixels)
    return np.concatenate([areas.ravel(), counts.ravel()]).astype(np.float64)


def _mean_iou(n_classes: int, rows: FloatArray) -> float:
    return float(segmentation.segmentation_values(_areas(rows, n_classes))[0])


def _areas(rows: FloatArray, n_classes: int) -> IntArray:
    """Return the areas (3, C) of all images together."""
    return np.asarray(rows[:, : 3 * n_classes].sum(axis=0).reshape(3, n_classes), dtype=np.int64)


def _values(rows: FloatArray, n_classes: int) -> dict[str, float]:
    """Return the metrics of rows, without intervals."""
    values = segmentation.segmentation_values(_areas(rows, n_classes)).tolist()
    found = dict(zip((metric.name for metric in segmentation.SEGMENTATION), values, strict=True))
    if rows.shape[1] > 3 * n_classes:
        counts = rows[:, 3 * n_classes :].sum(axis=0).reshape(4, n_classes)
        found[boundary.BOUNDARY_F.name] = float(np.nanmean(boundary.boundary_f(counts)))
    return found


def _cells(
    n_classes: int, target: Target, grid: tuple[int, int]
) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]:
    """Return the pixels of each class (C, h, w) and all counted ones (h, w) in the cells of a grid."""
    counts = class_counts(_label(target), grid, n_classes, ignore=(IGNORED,)).T.reshape(n_classes, *grid)
    return counts.astype(np.float64), counts.sum(axis=0).astype(np.float64)


def _label(target: Target) -> npt.NDArray[np.int32]:
    return np.where(np.isnan(target[0]), IGNORED, target[0]).astype(np.int32)


def _check_totals(pixels: FloatArray) -> None:
    """Refuse a train part with one class.

    Raises:
        DataError: it is.
    """
    if np.count_nonzero(pixels) < 2:
        raise DataError(
            "segmentation needs two classes, and all counted pixels of train belong to one",
            "`sslbench check-data` shows the classes of the pixels; a binary task needs its background as a class.",
        )
