"""Video object segmentation by propagation of the masks of the first frame, without training.

Each cell of a frame takes the mean of the labels of the most similar cells of the first frame and of a few frames
before (`solvers.propagation`; Jabri et al. 2020, Caron et al. 2021). Soft labels are brought to the size of the true
masks by bilinear interpolation, and the object of the largest value is the prediction of the pixel.

Scores are those of DAVIS 2017 (Pont-Tuset et al.): region similarity J and boundary measure F of every object, averaged
over its frames without the first and the last one, and over all objects. Intervals resample videos. Objects are those
of the first frame; later ones count as background.

Beside the score stand the first mask kept in every frame (as chance), the pixels of the cells, and the untrained
network. Patches of 8 pixels score about 8 points more than patches of 16 of the same method: compare at one grid only.

Memory: features of 1 + `previous` frames, whatever the length of the video. Time: that of the matrix products, see
`solvers.propagation`.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from sslbench.arrays import FloatArray
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.dense import DenseEncoder, layer_inputs
from sslbench.backbones.layers import Layer
from sslbench.data.source import Labels, Source
from sslbench.data.tracks import Ids, Videos
from sslbench.distributed.collectives import rank
from sslbench.errors import DataError, UsageError
from sslbench.features.extract import ExtractSettings
from sslbench.labels import LABELS
from sslbench.metrics.dense.video import TRACKING, VideoScores, frame_scores, measure_of_videos, object_values
from sslbench.metrics.summary import summarise
from sslbench.protocols._parts.dense_images import Fitted, maps_and_pixels, network_input, pictures, pixel_floors
from sslbench.protocols.protocol import OnImages, Protocol
from sslbench.protocols.tracking.settings import Settings
from sslbench.results import Outcome
from sslbench.runtime.progress import stage_progress
from sslbench.solvers.in_context import class_counts, shares
from sslbench.solvers.propagation import frame_size, propagate_video, sampled_labels
from sslbench.solvers.upsampling import upsampled_classes

_KEPT = "first mask kept"
_TOGETHER = 8
"""Frames that are encoded together, at most."""


def check(settings: Settings, labels: Labels) -> None:
    """Refuse settings and data that cannot work or have no effect, before any frame is decoded.

    Raises:
        UsageError: a setting is out of its range, or has no effect.
        DataError: the data are no videos with masks.
    """
    if labels.kind != "tracks":
        raise DataError(f"tracking needs videos with masks, and these samples have {LABELS[labels.kind].text}")
    for name, least in (("short", 0), ("multiple", 0), ("previous", 0), ("topk", 1), ("radius", 0.0)):
        if getattr(settings, name) < least:
            raise UsageError(f"tracking: {name} must be at least {least}, not {getattr(settings, name)}")
    for name in ("temperature", "max_memory"):
        if not getattr(settings, name) > 0:
            raise UsageError(f"tracking: {name} must be positive, not {getattr(settings, name)}")
    if settings.multiple and not settings.short:
        raise UsageError("tracking: multiple has no effect on frames of their own size", "Give short= as well.")
    if not settings.radius and (settings.window != Settings().window or not settings.window_on_first):
        raise UsageError("tracking: without a radius there is no window", "Leave window and window_on_first out.")


def row_names(
    backbone: Backbone, layers: Sequence[Layer], train: Source, settings: Settings, *, seed: int
) -> tuple[str, ...]:
    """Return the names of the results, one per layer, before any frame is decoded.

    Raises:
        UsageError: a layer has a pool, or the facet is none of its parts.
    """
    return tuple(each.name for each in layer_inputs(backbone, layers, facet=settings.facet))


def run(  # noqa: PLR0913  the signature of every protocol on images
    backbone: Backbone,
    layers: Sequence[Layer],
    train: Source,
    test: Source,
    settings: Settings,
    *,
    seed: int,
    engine: ExtractSettings,
    folder: Path,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Outcome]:
    """Track the objects of the videos of the test part; with several processes the first one does.

    Args:
        backbone: stays as it is.
        layers: a row of results each, from one pass over the frames.
        train: not used.
        test: videos with masks.
        settings: see `Settings`.
        seed: of the half-samples of intervals; nothing else is drawn.
        engine: device, precision, frames per forward pass, threads that decode.
        folder: not used.
        progress: called with what, frames done and frames in all.

    Returns:
        Name of a layer -> outcome; empty on processes other than the first.

    Raises:
        DataError: the data are no videos, frames cannot be read, or a mask is not of the size of its frame.
    """
    check(settings, test.labels)
    if not isinstance(test.tuples, Videos):
        raise DataError(f"{test.name} has no videos")
    if rank() != 0:
        return {}
    inputs = layer_inputs(backbone, layers, facet=settings.facet)
    encoder = DenseEncoder(backbone, inputs, device=engine.device, precision=engine.precision)
    report = stage_progress(progress, f"{backbone.name} on {test.name}")
    total = sum(len(rows) for rows in test.tuples.frames)
    values: dict[str, list[FloatArray]] = {}
    floor_of: dict[str, str] = {}
    done = 0
    for number in range(len(test)):
        tracker = _VideoTracker(encoder, backbone, test, number, settings, engine)
        for _ in tracker.frames():
            done += 1
            if report is not None:
                report(done, total)
        floor_of = floor_of or tracker.floor_of
        for name, of_objects in tracker.values().items():
            values.setdefault(name, []).append(of_objects)
    return {each.name: _outcome(values, each.name, floor_of[each.name], test, seed) for each in inputs}


class _VideoTracker:
    """Propagation of the first masks of a video by every map, and its scores."""

    def __init__(
        self,
        encoder: DenseEncoder,
        backbone: Backbone,
        test: Source,
        number: int,
        settings: Settings,
        engine: ExtractSettings,
    ) -> None:
        if not isinstance(test.tuples, Videos):
            raise DataError(f"{test.name} has no videos")
        self.encoder, self.backbone, self.test, self.settings, self.engine = encoder, backbone, test, settings, engine
        self.masks, self.rows = test.tuples.masks, test.tuples.rows(number)
        self.first = self.masks.read_ids(self.rows[0])
        self.number = int(self.first.max())
        self.floor_of: dict[str, str] = {}
        self._scores: dict[str, list[FloatArray]] = {}
        self._queues: dict[str, deque[torch.Tensor]] = {}
        self._labels: dict[str, Iterator[torch.Tensor]] = {}

    def frames(self) -> Iterator[int]:
        """Encode, propagate and score frame by frame; yield the position of each."""
        for position, maps in enumerate(self._encoded()):
            if not position:
                self._start(maps)
            scored = 0 < position < len(self.rows) - 1
            truth = self._truth(position) if scored else self.first
            if scored:
                self._scores.setdefault(_KEPT, []).append(frame_scores(truth, self.first, self.number))
            for name, value in maps.items():
                self._queues[name].append(value)
                label = next(self._labels[name])
                if scored:
                    found = upsampled_classes(label, (truth.shape[0], truth.shape[1]), min_max=self.settings.scaled)
                    own = frame_scores(truth, found.cpu().numpy().astype(np.int32), self.number)
                    self._scores.setdefault(name, []).append(own)
            yield position

    def values(self) -> dict[str, FloatArray]:
        """Return name of a map, or of the first mask kept -> values (K, 7) of the objects."""
        found = {}
        for name, frames in self._scores.items():
            each = np.stack(frames, axis=2)
            found[name] = object_values(VideoScores(each[0], each[1]))
        return found

    def _truth(self, position: int) -> Ids:
        truth = self.masks.read_ids(self.rows[position])
        if truth.shape != self.first.shape:
            name = self.test.every_image().images.path(self.rows[position])
            raise DataError(
                f"{name}: its mask is {truth.shape[1]} x {truth.shape[0]} pixels, that of the first frame "
                f"{self.first.shape[1]} x {self.first.shape[0]}"
            )
        return truth

    def _start(self, maps: dict[str, torch.Tensor]) -> None:
        """Set up the propagation by each map from the masks of the first frame."""
        grids = {name: (int(value.shape[1]), int(value.shape[2])) for name, value in maps.items()}
        self.floor_of = pixel_floors({each.name: grids[each.name] for each in self.encoder.inputs})
        for name, value in maps.items():
            queue: deque[torch.Tensor] = deque()
            first = _cell_labels(self.first, grids[name], self.number, self.settings).to(value.device)
            self._queues[name] = queue
            self._labels[name] = propagate_video(
                _taken(queue), first, self.settings.propagation(), max_memory=self.settings.max_memory
            )

    def _encoded(self) -> Iterator[dict[str, torch.Tensor]]:
        """Yield the maps (D, h, w) of each frame; a few frames are encoded together."""
        fitted: Fitted | None = None
        batch: list[torch.Tensor] = []
        together = min(_TOGETHER, self.engine.batch_size)
        preprocessing = self.backbone.preprocessing
        for done, (row, picture) in enumerate(pictures(self.test, self.rows, preprocessing, self.engine), start=1):
            size = (int(picture.shape[1]), int(picture.shape[2]))
            if fitted is None:
                fitted = frame_fit(size, self.settings, self.encoder.multiple)
            name = self.test.every_image().images.path(row) if size != fitted.original else ""
            if size != fitted.original:
                raise DataError(f"{name} is {size[1]} x {size[0]} pixels, the first frame {_text(fitted.original)}")
            if size != self.first.shape and done == 1:
                raise DataError(
                    f"{self.test.every_image().images.path(row)} is {_text(size)} pixels, its mask "
                    f"{_text((self.first.shape[0], self.first.shape[1]))}"
                )
            batch.append(network_input(picture, fitted, preprocessing))
            if len(batch) == together or done == len(self.rows):
                maps = maps_and_pixels(self.encoder, torch.cat(batch).to(self.encoder.device))
                for i in range(len(batch)):
                    yield {name: value[i] for name, value in maps.items()}
                batch = []


def _text(size: tuple[int, int]) -> str:
    return f"{size[1]} x {size[0]}"


def _taken(queue: "deque[torch.Tensor]") -> Iterator[torch.Tensor]:
    """Yield what is put into a queue; each item is there before it is asked for."""
    while True:
        yield queue.popleft()


def frame_fit(original: tuple[int, int], settings: Settings, multiple: int) -> Fitted:
    """Return the size to which the frames of a video are resized.

    >>> frame_fit((480, 854), Settings(short=480, multiple=64), 16).canvas, frame_fit((480, 854), Settings(), 16).canvas
    ((480, 832), (480, 848))
    """
    if settings.short and settings.multiple:
        wanted = frame_size(*original, short=settings.short, multiple=settings.multiple)
    elif settings.short:
        scale = settings.short / min(original)
        wanted = round(original[0] * scale), round(original[1] * scale)
    else:
        wanted = original
    height, width = (max(multiple, round(side / multiple) * multiple) for side in wanted)
    return Fitted(original, (height, width), (0, 0), (height, width))


def _cell_labels(ids: Ids, grid: tuple[int, int], number: int, settings: Settings) -> torch.Tensor:
    """Return the soft labels (number + 1, h, w) of the cells of the first frame."""
    if settings.first == "centres":
        return torch.from_numpy(sampled_labels(ids, grid, number))
    rows = tuple(max(n, side) for n, side in zip(grid, ids.shape, strict=True))
    if rows != ids.shape:  # a grid finer than the mask: every cell needs a pixel
        at = [np.arange(n) * side // n for n, side in zip(rows, ids.shape, strict=True)]
        ids = ids[np.ix_(*at)]
    each = shares(class_counts(ids, grid, number + 1, ignore=()))
    return torch.from_numpy(np.moveaxis(each.reshape(*grid, number + 1), 2, 0).copy())


def _outcome(values: dict[str, list[FloatArray]], name: str, floor: str, test: Source, seed: int) -> Outcome:
    rows = _rows(values[name])
    metrics, headline, _ = summarise("tracks", (), test.labels.values, rows, seed=seed)
    objects = int(rows[:, 0].sum())
    return Outcome(
        metrics=metrics,
        headline=headline,
        scores=rows,
        per_class={},
        chance=_named(_rows(values[_KEPT])),
        floors={"pixels": _named(_rows(values[floor]))},
        notes=(
            f"{objects:,} objects of {len(test):,} videos; chance keeps the masks of the first frame.",
            "The first and the last frame are not scored.",
        ),
    )


def _rows(videos: Sequence[FloatArray]) -> "np.ndarray[tuple[int, int], np.dtype[np.float32]]":
    """Return the scores (N, 8) of videos, see `TRACK_COLUMNS`."""
    return np.stack([np.append(len(each), each.sum(axis=0)) for each in videos]).astype(np.float32)


def _named(rows: "np.ndarray[tuple[int, int], np.dtype[np.float32]]") -> dict[str, float]:
    values = measure_of_videos(rows).statistic(np.ones((1, len(rows))))[0].tolist()
    return dict(zip((metric.name for metric in TRACKING), values, strict=True))


PROTOCOL = Protocol(
    version=1,
    summary="Video object segmentation by propagation of the first masks, without training.",
    settings=Settings,
    kind=OnImages(check, row_names, run, label_kinds=frozenset({"tracks"}), trains=False),
)
