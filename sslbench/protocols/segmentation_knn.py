"""Semantic segmentation without training: every patch of a test image takes the labels of the nearest training patches.

Balazevic et al., NeurIPS 2023 ("Towards in-context scene understanding", Hummingbird), section 3. A memory holds the
features of patches of training images with the share of each class among their pixels. A test patch gets the mean of
its k nearest, weighted by softmax(cosine / temperature); the shares are brought to the size of the label map by
bilinear interpolation, and the largest one is the class of the pixel.

Differences from the authors' and later code: the search is exact; scores are at the size of the label map, not of the
resized image; ignored pixels are in neither memory nor score. Their scores are those after a one-to-one assignment of
the predicted classes, which can only raise them: `matching=iou` adds these as `matched_mIoU` and `matched_aAcc`.

A layer may be named with `grid+cls` (the class token joined to each patch), `grid+flip` (features averaged with those
of the mirrored image) or both: `--layers last:grid+cls+flip`.

Memory: that of the patches, 10^6 x 768 numbers in float32 are 3.1 GB, with their labels of 150 classes 0.6 GB. Time:
the search, 2 * patches * memory * D operations; the 1,449 images of Pascal VOC with 32 x 32 patches against 10^6 take
2.3 * 10^15, which is 13 hours at 50 GFLOP/s, minutes on a GPU.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from sslbench.arrays import FloatArray, IntArray, Matrix
from sslbench.backbones.views import GRIDS
from sslbench.config import setting
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.features.array import Features
from sslbench.metrics.dense import segmentation
from sslbench.metrics.intervals import Units
from sslbench.metrics.summary import summarise, with_intervals
from sslbench.protocols._parts.dense.classes import check_classes, class_cells, notes_on_classes, read_classes
from sslbench.protocols._parts.dense.task import ALL_IGNORED
from sslbench.protocols.protocol import Cost, OnFeatures, Protocol, ProtocolSettings, Shapes
from sslbench.results import Outcome
from sslbench.runtime.progress import Progress, stage_progress
from sslbench.solvers.in_context import class_counts, sample_patches, shares, weighted_labels
from sslbench.solvers.neighbours import fastest_engine, nearest, search_work
from sslbench.solvers.upsampling import upsampled_classes
from sslbench.targets.label_maps import IGNORED, Grid, LabelMaps, PixelLabels
from sslbench.targets.target import Target

if TYPE_CHECKING:
    from sslbench.features.array import ExtractSettings

# Patches searched at a time.
_QUERIES = 1 << 16
_RESAMPLES = 1000


@dataclasses.dataclass(frozen=True)
class Settings(ProtocolSettings):
    """Settings of the in-context segmentation."""

    k: int = setting(30, "number of nearest patches whose labels are averaged", within="[1, inf)")
    temperature: float = setting(
        0.02, "divisor of the cosine in the softmax weights; smaller weighs the nearest more", within="(0, inf)"
    )
    memory: int = setting(
        1_000_000,
        "largest number of training patches; of more, each image keeps equally many, those of its rare classes first",
        within="[1, inf)",
    )
    matching: Literal["none", "iou", "pixels"] = setting(
        "none",
        "scores after a one-to-one assignment of predicted classes, beside the others: iou as in Hummingbird's code, "
        "pixels as in STEGO's",
    )
    max_memory: float = setting(1.0, "working memory of the search", unit="GB", changes_result=False)


@dataclasses.dataclass(frozen=True)
class PatchMemory:
    """Patches of training images.

    Attributes:
        x: float32 (M, D), features.
        labels: float32 (M, C), share of each class among the counted pixels.
        pixels: int64 (C,), counted pixels of each class in all training images.
        places: float64 (P, C), sum over the images of the shares of each class at each place of the grid.
        left_out: patches that the memory has no room for.
    """

    x: Matrix
    labels: Matrix
    pixels: IntArray
    places: FloatArray
    left_out: int


def check(settings: Settings, train: Target) -> None:
    """Refuse settings that cannot work, before any image is decoded."""
    if not isinstance(train, LabelMaps):
        raise DataError(
            f"segmentation-knn: needs a class for every pixel, and these samples have {train.title}",
            "Give data with label maps: images/ and masks/, ADE20K, Cityscapes, Pascal VOC, a manifest with masks.",
        )
    check_classes("segmentation-knn", train)


def check_targets(
    settings: Settings, parts: Sequence[Source], *, engine: "ExtractSettings", progress: Progress | None = None
) -> None:
    """Read every label map, so that those that cannot be used are listed before images are encoded."""
    from sslbench.protocols._parts.dense.survey import refuse_problems, survey

    found = []
    for source in parts:
        report = stage_progress(progress, f"reading the label maps of {source.name}")
        cells = functools.partial(class_cells, len(source.target.classes))
        found.append((source, survey(source, read_classes, cells, engine, report)))
    refuse_problems("segmentation-knn", ALL_IGNORED, found)


def run(train: Features, test: Features, settings: Settings, *, seed: int, device: str = "cpu") -> Outcome:
    """Segment the test images by the patches of the training images.

    `train`: features (N, h * w * D) of grids, and label maps; `device`: of the search by torch; the result is the same.
    """
    memory = patch_memory(train, settings.memory, seed)
    classes = train.target.classes
    areas, tables = np.zeros((len(test), 3, len(classes)), np.int64), list[IntArray]()
    for index, (predicted, label) in enumerate(predicted_maps(memory, test, settings, device)):
        table = segmentation.confusion_matrix(predicted, label, len(classes), ignore=(IGNORED,))
        areas[index] = _areas_of(table)
        tables += [] if settings.matching == "none" else [table.astype(np.int32)]
    rows = areas.reshape(len(areas), -1).astype(np.float32)
    metrics, headline, per_class = summarise(
        LabelMaps, classes, test.target.values, rows, seed=seed, groups=test.groups
    )
    labelled = areas[:, 2].sum(axis=0)
    position = _of_position(memory, test)
    if settings.matching != "none":
        # The assignment is the one that is best for all images together.
        assigned = segmentation.one_to_one(np.sum(tables, axis=0, dtype=np.int64), settings.matching)
        measure = segmentation.matched_measure(segmentation.assigned_areas(np.stack(tables), assigned))
        metrics |= with_intervals(measure, Units.of(len(test), test.groups), seed, _RESAMPLES)
    notes = [f"The memory has {len(memory.x):,} patches of {len(train):,} images"]
    notes[0] += f", {memory.left_out:,} were left out." if memory.left_out else "."
    if settings.k >= len(memory.x):
        notes.append(f"k={settings.k:,} is not below the {len(memory.x):,} patches of the memory: all of them vote.")
    notes += notes_on_classes(classes, memory.pixels > 0, labelled > 0)
    # The most frequent class of train everywhere.
    everywhere, most = np.zeros((3, len(classes)), dtype=np.int64), int(np.argmax(memory.pixels))
    everywhere[2], everywhere[0, most], everywhere[1, most] = labelled, labelled[most], labelled.sum()
    majority = _named(everywhere)
    floor, name = max(
        (majority[headline], "the most frequent class everywhere"), (position[headline], "the class of the place")
    )
    if metrics[headline][0] <= floor:
        notes.append(f"No better than predicting {name}, without features.")
    return Outcome(
        metrics=metrics,
        headline=headline,
        scores=rows,
        per_class=per_class,
        chance=majority,
        floors={"position only": position},
        notes=tuple(notes),
        scored=int(areas[:, 2].any(axis=1).sum()),
    )


def patch_memory(train: Features, most: int, seed: int) -> PatchMemory:
    """Return the patches of the training images, at most `most`; every image keeps equally many."""
    maps, grid = _parts(train)
    n_classes, cells = len(train.target.classes), grid[0] * grid[1]
    generator = np.random.default_rng(seed)
    room = cells if len(train) * cells <= most else max(1, most // len(train))
    kept: list[Matrix] = []
    labels: list[Matrix] = []
    pixels, places, left_out = np.zeros(n_classes, dtype=np.int64), np.zeros((cells, n_classes)), 0
    for index in range(len(train)):
        counts = class_counts(maps.read_map(index).semantic, grid, n_classes, ignore=(IGNORED,))
        pixels += counts.sum(axis=0)
        places += shares(counts)
        chosen = np.sort(sample_patches(counts, room, generator))
        left_out += int(counts.any(axis=1).sum()) - len(chosen)
        row = np.asarray(train.x[index], dtype=np.float32)
        _check_finite(row[None], train, index, "train")
        kept.append(row.reshape(cells, -1)[chosen])
        labels.append(shares(counts[chosen]))
    if not pixels.any():
        raise DataError("segmentation-knn: no pixel of the training maps counts: all are ignored")
    return PatchMemory(np.concatenate(kept), np.concatenate(labels), pixels, places, left_out)


def _areas_of(table: IntArray) -> IntArray:
    """Return the areas (3, C) of a table (C, C) of labels and predictions."""
    return np.stack([table.diagonal(), table.sum(axis=0), table.sum(axis=1)])


def predicted_maps(
    memory: PatchMemory, test: Features, settings: Settings, device: str = "cpu"
) -> Iterator[tuple[IntArray, Grid]]:
    """Yield the predicted class of every pixel of each test image, and its label map, both (H, W).

    `test`: features (N, h * w * D) of grids, and label maps.
    """
    maps, grid = _parts(test)
    cells, n_classes = grid[0] * grid[1], memory.labels.shape[1]
    engine = fastest_engine(device, 2.0 * len(memory.x) * len(test) * cells * memory.x.shape[1])
    step = max(1, _QUERIES // cells)
    for start in range(0, len(test), step):
        block = np.asarray(test.x[start : start + step], dtype=np.float32)
        _check_finite(block, test, start, "test")
        similarity, rows = nearest(
            memory.x,
            block.reshape(len(block) * cells, -1),
            min(settings.k, len(memory.x)),
            metric="cosine",
            max_memory=settings.max_memory,
            engine=engine,
        )
        for i in range(len(block)):
            part = slice(i * cells, (i + 1) * cells)
            found = weighted_labels(similarity[part], rows[part], memory.labels, settings.temperature)
            label = maps.read_map(start + i).semantic
            yield _largest(found.reshape(*grid, n_classes), label), label


def _largest(scores: Matrix, label: Grid) -> IntArray:
    """Return the classes of highest score (h, w, C) at the size of a label map (H, W)."""
    import torch

    height, width = label.shape
    return upsampled_classes(torch.from_numpy(np.moveaxis(scores, 2, 0).copy()), (height, width)).numpy()


def _check_finite(rows: Matrix, features: Features, start: int, part: str) -> None:
    """Refuse rows from `start` on that are NaN or infinite. Each is looked at when it is read: that may encode it."""
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        raise DataError(
            f"the features of {part} sample {features.ids[start + bad[0]]} are not finite numbers",
            "The backbone overflowed (try --precision fp32) or its weights are damaged (see sslbench inspect).",
        )


def _parts(features: Features) -> tuple[PixelLabels, tuple[int, int]]:
    if not isinstance(features.target, LabelMaps) or features.grid is None:
        raise UsageError(
            "segmentation-knn needs images with label maps and a layer with a vector per patch",
            "Give --weights and --data with label maps.",
        )
    return features.target.maps, features.grid


def _of_position(memory: PatchMemory, test: Features) -> dict[str, float]:
    """Return the metrics of predicting at each place the class that is most frequent there in train."""
    maps, grid = _parts(test)
    # A place may have no counted pixel in any training image.
    scores = (memory.places / np.maximum(memory.places.sum(axis=1, keepdims=True), 1e-12)).astype(np.float32)
    total = np.zeros((scores.shape[1],) * 2, dtype=np.int64)
    for index in range(len(test)):
        label = maps.read_map(index).semantic
        predicted = _largest(scores.reshape(*grid, -1), label)
        total += segmentation.confusion_matrix(predicted, label, scores.shape[1], ignore=(IGNORED,))
    return _named(_areas_of(total))


def _named(areas: IntArray) -> dict[str, float]:
    values = segmentation.segmentation_values(areas).tolist()
    return dict(zip((metric.name for metric in segmentation.SEGMENTATION), values, strict=True))


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Count the search among patches, and passes over label maps, two in test because of the floor by position."""
    width, classes = max(1, shapes.width // shapes.cells), shapes.classes
    patches, queries = min(settings.memory, shapes.train * shapes.cells), float(shapes.test * shapes.cells)
    products, passes = search_work(patches, queries, width, settings.k)
    # Shares of the neighbours are gathered and added.
    voting = 12.0 * queries * settings.k * classes
    # Runs of one label are looked for in maps (32). A score of a pixel is the sum of four products, and is compared:
    # eight operations, each of which reads two numbers and writes one (96).
    pixels = float(shapes.pixels) * (32 * shapes.train + 2 * shapes.test * (32 + 96 * classes))
    return Cost(
        products=products,
        passes=passes + voting + pixels,
        memory=8.0 * patches * (width + classes) + min(4.0 * patches * width, settings.max_memory * 1e9),
        scores=12.0 * shapes.test * classes,
        products_on_device=True,
        passes_on_device=passes,
    )


PROTOCOL = Protocol(
    version=1,
    summary="semantic segmentation by the labels of the nearest training patches, without training.",
    settings=Settings,
    kind=OnFeatures(check=check, run=run, cost=cost, takes=(LabelMaps,), view=GRIDS, check_targets=check_targets),
)
