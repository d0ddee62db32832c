"""Masks of objects (DAVIS) and of classes of parts (VIP): propagated, brought to the size of the frame, and scored."""

import numpy as np
import numpy.typing as npt
import torch

from sslbench.arrays import FloatArray, IntArray
from sslbench.data.tracks import UNLABELLED
from sslbench.errors import DataError
from sslbench.metrics.dense.segmentation import class_areas
from sslbench.metrics.dense.video import VideoScores, frame_scores, object_values, objects_in
from sslbench.protocols._parts.dense_images import Fitted
from sslbench.protocols._parts.untrained import MapRun
from sslbench.protocols.tracking.propagation import FirstLabels, propagated, size_text
from sslbench.protocols.tracking.settings import Settings
from sslbench.protocols.tracking.tracked import KEPT, FrameDone, Tracked
from sslbench.solvers.in_context import class_counts, shares
from sslbench.solvers.propagation import sampled_labels
from sslbench.solvers.upsampling import upsampled_classes
from sslbench.targets.videos import Ids, MaskedVideos


def track_objects(run: MapRun[Settings], videos: MaskedVideos, number: int, done: FrameDone) -> Tracked:
    """Score the objects of a video; a row is their number and the sums of their values, see `video.TRACK_COLUMNS`.

    Objects are the ids that occur in the first frame; later ones are background. The first and the last frame are not
    scored, as in DAVIS.
    """
    rows = videos.rows(number)
    first = videos.masks.read_ids(rows[0])
    objects = objects_in(first)
    channels = np.searchsorted(objects, first, side="right").astype(np.int32)  # ids may have gaps, channels have none
    numbers = np.append(0, objects)
    scores: dict[str, list[FloatArray]] = {}
    grids: dict[str, tuple[int, int]] = {}
    start = _first_labels(channels, len(numbers), run.settings)
    for position, (_, labels) in enumerate(propagated(run, rows, start)):
        grids = {name: (label.shape[1], label.shape[2]) for name, label in labels.items()}
        if 0 < position < len(rows) - 1:
            truth = _truth(run, videos, rows[position], first)
            scores.setdefault(KEPT, []).append(frame_scores(truth, first, objects))
            for name, label in labels.items():
                predicted = numbers[_classes(label, truth, run.settings)]
                scores.setdefault(name, []).append(frame_scores(truth, predicted, objects))
        done()
    found = {}
    for name, frames in scores.items():
        each = np.stack(frames, axis=2)
        values = object_values(VideoScores(each[0], each[1]))
        found[name] = np.append(len(values), values.sum(axis=0))
    return Tracked(found, grids)


def track_parts(run: MapRun[Settings], videos: MaskedVideos, number: int, done: FrameDone) -> Tracked:
    """Score the classes of a video; a row has the areas of intersection, prediction and label of each class.

    All frames count, as in the code that publishes scores of VIP: of the first one its labels on the grid.
    """
    rows, classes = videos.rows(number), len(run.test.target.classes)
    first = videos.masks.read_ids(rows[0])
    known = np.where(first == UNLABELLED, 0, first).astype(np.int32)
    areas: dict[str, IntArray] = {}
    grids: dict[str, tuple[int, int]] = {}
    for position, (_, labels) in enumerate(propagated(run, rows, _first_labels(known, classes, run.settings))):
        grids = {name: (label.shape[1], label.shape[2]) for name, label in labels.items()}
        truth = _truth(run, videos, rows[position], first)
        found = {name: _classes(label, truth, run.settings) for name, label in labels.items()} | {KEPT: known}
        for name, prediction in found.items():
            own = class_areas(prediction, truth, classes, ignore=(UNLABELLED,))
            areas[name] = areas[name] + own if name in areas else own
        done()
    return Tracked({name: own.ravel().astype(np.float64) for name, own in areas.items()}, grids)


def _classes(label: torch.Tensor, truth: Ids, settings: Settings) -> Ids:
    found = upsampled_classes(label, (truth.shape[0], truth.shape[1]), min_max=settings.scaled)
    return np.asarray(found.cpu().numpy(), dtype=np.int32)


def _truth(run: MapRun[Settings], videos: MaskedVideos, row: int, first: Ids) -> Ids:
    truth = videos.masks.read_ids(row)
    if truth.shape != first.shape:
        raise DataError(
            f"{run.test.every_image().images.path(row)}: its mask is {truth.shape[1]} x {truth.shape[0]} pixels, that "
            f"of the first frame {first.shape[1]} x {first.shape[0]}"
        )
    return truth


def _first_labels(ids: Ids, channels: int, settings: Settings) -> FirstLabels:
    """Return the function that gives the soft labels (channels, h, w) of the cells of the first frame."""

    def labels(fitted: Fitted, grid: tuple[int, int], path: str) -> torch.Tensor:
        if fitted.original != ids.shape:
            mask = size_text((ids.shape[0], ids.shape[1]))
            raise DataError(f"{path} is {size_text(fitted.original)} pixels, its mask {mask}")
        if settings.first == "centres":
            return torch.from_numpy(sampled_labels(ids, grid, channels - 1))
        return torch.from_numpy(_cell_shares(ids, grid, channels))

    return labels


def _cell_shares(ids: Ids, grid: tuple[int, int], channels: int) -> npt.NDArray[np.float32]:
    """Return the share of each number in each cell, (channels, h, w)."""
    rows = tuple(max(n, side) for n, side in zip(grid, ids.shape, strict=True))
    if rows != ids.shape:  # a grid finer than the mask: every cell needs a pixel
        at = [np.arange(n) * side // n for n, side in zip(rows, ids.shape, strict=True)]
        ids = ids[np.ix_(*at)]
    each = shares(class_counts(ids, grid, channels, ignore=()))
    return np.moveaxis(each.reshape(*grid, channels), 2, 0).copy()
