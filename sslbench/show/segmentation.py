"""Best, median and worst test images of a record of segmentation, with predicted and true maps."""

import dataclasses
from pathlib import Path

import numpy as np
from PIL import Image

from sslbench.arrays import ByteArray, FloatArray
from sslbench.data.checks.sheets import thumbnails
from sslbench.data.maps.colours import class_colours, labelled
from sslbench.errors import DataError, ResultError
from sslbench.evaluation.encode import encode_parts
from sslbench.evaluation.request import RunSettings
from sslbench.metrics.dense import segmentation
from sslbench.protocols import segmentation_knn
from sslbench.results import Result, records
from sslbench.runtime.progress import Progress
from sslbench.show.page import Section
from sslbench.show.pictures import Panel
from sslbench.show.record import AsTyped, choose, reading, reopen, rows_of

_SIDE = 224


def image_quality(areas: np.ndarray) -> FloatArray:
    """Return the mean IoU of each image over the classes that it shows or that are predicted, (N,).

    Args:
        areas: (N, 3 * C), see `metrics.dense.segmentation.class_areas`.
    """
    shaped = np.asarray(areas, dtype=np.float64).reshape(len(areas), 3, -1)
    return np.asarray(segmentation.segmentation_values(shaped)[:, 0])


def show_segmentation(
    result: Result,
    scores: records.Scores,
    typed: AsTyped,
    run: RunSettings,
    each: int,
    *,
    store: Path,
    progress: Progress | None = None,
) -> list[Section]:
    """Return the best, median and worst test images with their maps, predicted again from features computed again.

    Args:
        result: record of segmentation-knn.
        scores: of it: areas of each image.
        typed: location of the data.
        run: device and decoding.
        each: number of images per group.
        store: folder of the feature store.
        progress: receiver of the progress.

    Raises:
        ResultError: the predictions are not those of the record.
        SslbenchError: data or weights are gone, or are not those of the record.
    """
    prepared = reopen(result, typed, run, with_weights=True)
    encoded = encode_parts(prepared.backbone, prepared.data, prepared.layers, prepared.run, store, progress)
    layer = prepared.layers[0].text
    train, test = encoded.train[layer], encoded.test[layer]
    settings: segmentation_knn.Settings = prepared.request.tasks[0].settings
    groups = choose(image_quality(scores.scores), each)
    chosen = np.array(sorted(row for group in groups for row in group.rows), dtype=np.int64)
    memory = segmentation_knn.patch_memory(train, settings.memory, result.seed)
    device = str(prepared.run.torch_device())
    names = result.data.test.classes
    colours = class_colours(len(names))
    iou = image_quality(scores.scores)
    source, rows = prepared.data.test, rows_of(prepared.data.test, scores.ids)
    drawn: dict[int, list[Panel]] = {}
    seen: set[int] = set()
    at = {name: i for i, name in enumerate(test.ids)}
    queries = np.array([at[scores.ids[row]] for row in chosen], dtype=np.int64)
    maps = segmentation_knn.predicted_maps(memory, test.select(queries), settings, device)
    for row, (predicted, label) in zip(chosen.tolist(), maps, strict=True):
        areas = segmentation.class_areas(predicted, label, len(names), ignore=(-1,))
        if not np.array_equal(areas.ravel().astype(np.float32), scores.scores[row]):
            raise ResultError(
                f"{result.file}: the map of {scores.ids[row]} computed now is not the one of the record",
                "The network, a library or the protocol has changed: run the evaluation again.",
            )
        thumbnail = thumbnails(source, {"": [rows[row]]}, reading=reading(result, typed), side=2 * _SIDE)[""]
        if not thumbnail:
            raise DataError(f"{source.images.path(rows[row])} cannot be read")
        seen |= set(np.unique(predicted).tolist()) | set(np.unique(label).tolist())
        wrong = np.where(label < 0, 2, predicted != label)
        drawn[row] = [
            Panel(thumbnail[0].picture, f"IoU {100 * iou[row]:.1f} %"),
            _map(labelled(label, colours), "truth"),
            _map(labelled(predicted, colours), "prediction"),
            _map(labelled(wrong, _RIGHT_WRONG), f"wrong: {100 * (wrong == 1).sum() / max(1, (wrong < 2).sum()):.1f} %"),
        ]
    legend = [(names[c], tuple(colours[c].tolist())) for c in sorted(seen) if c >= 0]
    text = (
        "Ordered by the mean IoU of the image over its classes and the predicted ones. Grey pixels are ignored; in the "
        "last map wrong pixels are white."
    )
    return [
        Section(group.title, text, [(scores.ids[row], drawn[row]) for row in group.rows], _SIDE, legend)
        for group in groups
    ]


_RIGHT_WRONG: ByteArray = np.array([(30, 30, 30), (255, 255, 255)], dtype=np.uint8)


def _map(picture: Image.Image, caption: str) -> Panel:
    """Return the panel of a map, made smaller without mixing colours where it is large."""
    factor = 2 * _SIDE / max(picture.size)
    if factor < 1:
        size = max(1, round(picture.width * factor)), max(1, round(picture.height * factor))
        picture = picture.resize(size, Image.Resampling.NEAREST)
    return dataclasses.replace(Panel(picture, caption), blocky=True)
