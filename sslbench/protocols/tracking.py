"""Tracking of objects, parts and joints by propagation of the labels of the first frame, without training.

Each cell of a frame takes the mean of the labels of the most similar cells of the first frame and of a few frames
before (`solvers.propagation`; Jabri et al. 2020, Caron et al. 2021). The kind of the data decides the score:

- Masks of objects (DAVIS 2017, Pont-Tuset et al.): region similarity J and boundary measure F of every object, averaged
  over its frames without the first and the last one, and over all objects. Objects are the ids that occur in the first
  frame; later ones count as background.
- Masks of classes of parts (VIP): IoU of each class over the pixels of all frames of all videos together, mean over the
  classes that occur, background among them.
- Joints (JHMDB): share of all frames but the first of each clip in which a joint is within 0.1 and 0.2 of the person's
  size, mean over joints.

Soft labels of masks are brought to the size of the true masks by bilinear interpolation, and the object or class of the
largest value is the prediction of the pixel. A joint lies at the weighted mean of its largest cells. Intervals resample
videos.

Beside the score stand the labels of the first frame kept in every frame (as chance), the pixels of the cells, and the
untrained network. Patches of 8 pixels score about 8 points more than patches of 16 of the same method: compare at one
grid only.

Memory: features of 1 + `previous` frames, whatever the length of the video. Time: that of the matrix products, see
`solvers.propagation`.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray
from sslbench.config import setting
from sslbench.errors import DataError, UsageError
from sslbench.metrics.dense.poses import joint_counts
from sslbench.metrics.dense.segmentation import class_areas
from sslbench.metrics.dense.video import VideoScores, frame_scores, object_values, objects_in
from sslbench.metrics.summary import without_intervals
from sslbench.protocols._parts.untrained import FacetSettings, Fitted, LayerRun, pixel_floors
from sslbench.protocols.protocol import Cost, Protocol, Shapes
from sslbench.results import Outcome
from sslbench.solvers.in_context import class_counts, shares
from sslbench.solvers.propagation import (
    DINO,
    Propagation,
    frame_size,
    joint_labels,
    joint_places,
    propagate_video,
    sampled_labels,
)
from sslbench.solvers.upsampling import upsampled_classes
from sslbench.targets.target import Target
from sslbench.targets.videos import UNLABELLED, Ids, MaskedVideos, Parts, Poses, Tracks, Videos, inside

if TYPE_CHECKING:
    import torch

# Name of the scores of the labels of the first frame in every frame.
KEPT = "first labels kept"
_OF_MASKS, _OF_JOINTS = ("first", "scaled"), ("peak", "lost")
# Frames that are encoded together, at most.
_TOGETHER = 8

# Function from the place of the first frame in the input, a grid and the frame's name to labels (C, h, w).
FirstLabels = Callable[[Fitted, tuple[int, int], str], "torch.Tensor"]
# Function that is called after each frame.
FrameDone = Callable[[], None]


@dataclasses.dataclass(frozen=True)
class Settings(FacetSettings):
    """Settings of the propagation of masks and joints."""

    short: int = setting(
        0,
        "shorter side of the frames, the sides rounded to multiples of the patch; 0: the frames' own size",
        unit="pixels",
        within="[0, inf)",
    )
    multiple: int = setting(
        0,
        "with short: the longer side is rounded down to a multiple of this; 0: of the patch",
        within="[0, inf)",
        needs="short",
    )
    side: int = setting(
        0,
        "side of the square to which frames are resized, whatever their shape; 0: shape kept",
        unit="pixels",
        within="[0, inf)",
    )
    first: Literal["shares", "centres"] = setting(
        "shares",
        "masks: labels of the cells of the first frame: share of each object, or the object at the cell's centre",
    )
    scaled: bool = setting(
        False, "masks: scale the map of every object to 0 to 1 before the largest one is taken, as DINO does"
    )
    peak: int = setting(
        5, "joints: number of cells whose mean place, weighted by their labels, is the joint's", within="[1, inf)"
    )
    lost: Literal["missed", "left out"] = setting(
        "missed", "joints: what counts for a joint whose labels have vanished: a miss, or nothing, as the authors do"
    )
    previous: int = setting(
        DINO.previous, "number of frames before the current one that are searched, beside the first", within="[0, inf)"
    )
    topk: int = setting(DINO.topk, "number of most similar cells that count", within="[1, inf)")
    all_ties: bool = setting(DINO.all_ties, "count all cells that are as similar as the last of these")
    temperature: float = setting(
        DINO.temperature, "divisor of the cosine in the softmax over these cells", within="(0, inf)"
    )
    radius: float = setting(
        12.0, "reach of the window in which cells are searched; 0: everywhere", unit="cells", within="[0, inf)"
    )
    window: Literal["square", "disk", "open disk"] = setting(
        DINO.shape, "shape of the window; the open disk leaves out cells at exactly the radius"
    )
    window_on_first: bool = setting(DINO.window_on_first, "the window holds for the first frame as well")
    repeat_first: bool = setting(
        DINO.repeat_first,
        "until there are that many previous frames, the first one stands in for those that are missing",
    )
    max_memory: float = setting(0.5, "memory for similarities", unit="GB", changes_result=False, within="(0, inf)")

    def __post_init__(self) -> None:
        """Refuse settings that do not go together."""
        super().__post_init__()
        if self.side and self.short:
            raise UsageError("tracking: short has no effect beside side", "Give one of the two.")
        if not self.radius and (self.window != type(self).window or not self.window_on_first):
            raise UsageError("tracking: without a radius there is no window", "Leave window and window_on_first out.")

    def propagation(self) -> Propagation:
        """Return the settings of the solver."""
        return Propagation(
            previous=self.previous,
            topk=self.topk,
            all_ties=self.all_ties,
            temperature=self.temperature,
            radius=self.radius or None,
            shape=self.window,
            window_on_first=self.window_on_first,
            repeat_first=self.repeat_first,
        )


@dataclasses.dataclass(frozen=True)
class Tracked:
    """Scores of one video.

    Attributes:
        rows: name of a map, or `KEPT` -> its scores (K,), from which metrics follow.
        grids: name of a map -> rows and columns of its cells.
    """

    rows: dict[str, FloatArray]
    grids: dict[str, tuple[int, int]]


class Tracking(LayerRun[Settings]):
    """Tracking in the videos of a test part."""

    name = "tracking"
    takes = (Tracks, Parts, Poses)
    needs = "needs videos with masks or joints"

    @classmethod
    def check(cls, settings: Settings, target: Target) -> None:
        """Refuse settings and data that cannot work or have no effect, before any frame is decoded."""
        super().check(settings, target)
        for name in _OF_MASKS if isinstance(target, Poses) else _OF_JOINTS:
            if getattr(settings, name) != (usual := getattr(Settings(), name)):
                raise UsageError(
                    f"tracking: {name}={getattr(settings, name)} has no effect on {target.title}",
                    f"Leave it out, or give {name}={usual} beside a preset that has it.",
                )

    def score(self) -> dict[str, Outcome]:
        """Track the objects, parts or joints of all videos."""
        videos, report, inputs = Videos.of(self.test.target), self.report, self.encoder.inputs
        total, done = sum(len(rows) for rows in videos.frames), 0

        def frame_done() -> None:
            nonlocal done
            done += 1
            if report is not None:
                report(done, total)

        found = []
        for number in range(len(self.test)):
            if isinstance(videos, Poses):
                found.append(self.track_joints(videos, number, frame_done))
            elif isinstance(videos, Parts):
                found.append(self.track_parts(videos, number, frame_done))
            else:
                found.append(self.track_objects(MaskedVideos.of(videos), number, frame_done))
        floor_of = pixel_floors({each.name: found[0].grids[each.name] for each in inputs})
        return {each.name: self._outcome(found, each.name, floor_of[each.name]) for each in inputs}

    def track_objects(self, videos: MaskedVideos, number: int, done: FrameDone) -> Tracked:
        """Score the objects of a video; a row is their number and the sums of their values, see `video.TRACK_COLUMNS`.

        Objects are the ids that occur in the first frame; later ones are background. The first and the last frame are
        not scored, as in DAVIS.
        """
        rows = videos.rows(number)
        first = videos.masks.read_ids(rows[0])
        objects = objects_in(first)
        # Ids may have gaps, channels have none.
        channels = np.searchsorted(objects, first, side="right").astype(np.int32)
        numbers = np.append(0, objects)
        scores: dict[str, list[FloatArray]] = {}
        grids: dict[str, tuple[int, int]] = {}
        start = self._first_labels(channels, len(numbers))
        for position, (_, labels) in enumerate(self.propagated(rows, start)):
            grids = {name: (label.shape[1], label.shape[2]) for name, label in labels.items()}
            if 0 < position < len(rows) - 1:
                truth = self._truth(videos, rows[position], first)
                scores.setdefault(KEPT, []).append(frame_scores(truth, first, objects))
                for name, label in labels.items():
                    predicted = numbers[self._classes(label, truth)]
                    scores.setdefault(name, []).append(frame_scores(truth, predicted, objects))
            done()
        found = {}
        for name, frames in scores.items():
            each = np.stack(frames, axis=2)
            values = object_values(VideoScores(each[0], each[1]))
            found[name] = np.append(len(values), values.sum(axis=0))
        return Tracked(found, grids)

    def track_parts(self, videos: MaskedVideos, number: int, done: FrameDone) -> Tracked:
        """Score the classes of a video; a row has the areas of intersection, prediction and label of each class.

        All frames count, as in the code that publishes scores of VIP: of the first one its labels on the grid.
        """
        rows, classes = videos.rows(number), len(videos.classes)
        first = videos.masks.read_ids(rows[0])
        known = np.where(first == UNLABELLED, 0, first).astype(np.int32)
        areas: dict[str, IntArray] = {}
        grids: dict[str, tuple[int, int]] = {}
        for position, (_, labels) in enumerate(self.propagated(rows, self._first_labels(known, classes))):
            grids = {name: (label.shape[1], label.shape[2]) for name, label in labels.items()}
            truth = self._truth(videos, rows[position], first)
            found = {name: self._classes(label, truth) for name, label in labels.items()} | {KEPT: known}
            for name, prediction in found.items():
                own = class_areas(prediction, truth, classes, ignore=(UNLABELLED,))
                areas[name] = areas[name] + own if name in areas else own
            done()
        return Tracked({name: own.ravel().astype(np.float64) for name, own in areas.items()}, grids)

    def track_joints(self, poses: Poses, number: int, done: FrameDone) -> Tracked:
        """Score the joints of a video; a row has the counts of each joint, see `metrics.dense.poses.COUNTS`.

        The joints are those inside the first frame, which itself is not scored. In later frames they count wherever
        they are, as in the published evaluation.
        """
        import torch

        rows, joints = poses.rows(number), poses.joints[number]

        def first(fitted: Fitted, grid: tuple[int, int], path: str) -> torch.Tensor:
            given = np.where(inside(joints[0], fitted.original)[:, None], joints[0], np.nan)
            return torch.from_numpy(joint_labels(fitted.to_cells(given, grid), grid))

        predicted: dict[str, list[FloatArray]] = {}
        grids: dict[str, tuple[int, int]] = {}
        given = np.zeros(joints.shape[1], np.bool_)
        for position, (fitted, labels) in enumerate(self.propagated(rows, first)):
            grids = {name: (label.shape[1], label.shape[2]) for name, label in labels.items()}
            given = inside(joints[0], fitted.original)
            if position:
                predicted.setdefault(KEPT, []).append(joints[0])
                for name, label in labels.items():
                    places = fitted.from_cells(joint_places(label, self.settings.peak), grids[name])
                    predicted.setdefault(name, []).append(places)
            done()
        found = {}
        for name, frames in predicted.items():
            places = np.stack(frames)
            counted = np.broadcast_to(given, places.shape[:2])
            if self.settings.lost == "left out":
                counted = counted & ~np.isnan(places).any(axis=2)
            found[name] = joint_counts(places, joints[1:], counted).ravel().astype(np.float64)
        return Tracked(found, grids)

    def propagated(self, rows: Sequence[int], first: FirstLabels) -> "Iterator[tuple[Fitted, dict[str, torch.Tensor]]]":
        """Yield the soft labels (C, h, w) of each frame of a video by every map, from those of the first frame.

        Memory holds the features of 1 + `previous` frames.
        """
        settings = self.settings
        queues: dict[str, deque[torch.Tensor]] = {}
        labels: dict[str, Iterator[torch.Tensor]] = {}
        for fitted, maps in self._encoded(rows):
            found = {}
            for name, value in maps.items():
                if name not in queues:
                    queues[name] = deque()
                    path = self.test.every_image().images.path(rows[0])
                    own = first(fitted, (int(value.shape[1]), int(value.shape[2])), path).to(value.device)
                    labels[name] = propagate_video(
                        _taken(queues[name]), own, settings.propagation(), max_memory=settings.max_memory
                    )
                queues[name].append(value)
                # The solver takes the frame out of the queue only now.
                found[name] = next(labels[name])
            yield fitted, found

    def _encoded(self, rows: Sequence[int]) -> "Iterator[tuple[Fitted, dict[str, torch.Tensor]]]":
        """Yield the maps (D, h, w) of each frame; a few frames are encoded together."""
        import torch

        from sslbench.protocols._parts.images import maps_and_pixels, network_input, pictures

        fitted: Fitted | None = None
        batch: list[torch.Tensor] = []
        together, preprocessing = min(_TOGETHER, self.engine.batch_size), self.preprocessing
        for done, (row, picture) in enumerate(pictures(self.test, rows, preprocessing, self.engine), start=1):
            size = (int(picture.shape[1]), int(picture.shape[2]))
            if fitted is None:
                fitted = frame_fit(size, self.settings, self.encoder.multiple)
            if size != fitted.original:
                name = self.test.every_image().images.path(row)
                raise DataError(f"{name} is {_size_text(size)} pixels, the first frame {_size_text(fitted.original)}")
            batch.append(network_input(picture, fitted, preprocessing))
            if len(batch) == together or done == len(rows):
                maps = maps_and_pixels(self.encoder, torch.cat(batch).to(self.encoder.device))
                for i in range(len(batch)):
                    yield fitted, {name: value[i] for name, value in maps.items()}
                batch = []

    def _classes(self, label: "torch.Tensor", truth: Ids) -> Ids:
        """Return the channel of the largest label of each pixel of a mask."""
        found = upsampled_classes(label, (truth.shape[0], truth.shape[1]), min_max=self.settings.scaled)
        return np.asarray(found.cpu().numpy(), dtype=np.int32)

    def _truth(self, videos: MaskedVideos, row: int, first: Ids) -> Ids:
        truth = videos.masks.read_ids(row)
        if truth.shape != first.shape:
            raise DataError(
                f"{self.test.every_image().images.path(row)}: its mask is {_size_text(truth.shape)} pixels, that of "
                f"the first frame {_size_text(first.shape)}"
            )
        return truth

    def _first_labels(self, ids: Ids, channels: int) -> FirstLabels:
        """Return the function that gives the soft labels (channels, h, w) of the cells of the first frame."""
        import torch

        def labels(fitted: Fitted, grid: tuple[int, int], path: str) -> torch.Tensor:
            if fitted.original != ids.shape:
                raise DataError(f"{path} is {_size_text(fitted.original)} pixels, its mask {_size_text(ids.shape)}")
            if self.settings.first == "centres":
                return torch.from_numpy(sampled_labels(ids, grid, channels - 1))
            finest = tuple(max(n, side) for n, side in zip(grid, ids.shape, strict=True))
            mask = ids
            if finest != ids.shape:  # a grid finer than the mask: every cell needs a pixel
                at = [np.arange(n) * side // n for n, side in zip(finest, ids.shape, strict=True)]
                mask = ids[np.ix_(*at)]
            each = shares(class_counts(mask, grid, channels, ignore=()))
            return torch.from_numpy(np.moveaxis(each.reshape(*grid, channels), 2, 0).copy())

        return labels

    def _outcome(self, found: Sequence[Tracked], name: str, floor: str) -> Outcome:
        target = self.test.target
        rows = {key: np.stack([video.rows[key] for video in found]).astype(np.float32) for key in (name, floor, KEPT)}
        kind, values = type(target), target.values
        return Outcome.of(
            target,
            rows[name],
            seed=self.seed,
            groups=None,
            chance=without_intervals(kind, values, rows[KEPT]),
            floors={"pixels": without_intervals(kind, values, rows[floor])},
            notes=self._notes(rows[name]),
        )

    def _notes(self, rows: npt.NDArray[np.float32]) -> tuple[str, ...]:
        test, videos = self.test, f"{len(self.test):,} videos"
        if isinstance(test.target, Tracks):
            return (
                f"{int(rows[:, 0].sum()):,} objects of {videos}; chance keeps the masks of the first frame.",
                "The first and the last frame are not scored.",
            )
        counts = rows.reshape(len(rows), 3, -1).sum(axis=(0, 1), dtype=np.float64)
        if isinstance(test.target, Parts):
            absent = int((counts == 0).sum())
            return (
                f"{videos}; chance keeps the classes of the first frame. All frames count, of the first one its labels "
                "on the grid.",
                *(
                    (f"{absent} classes are neither labelled nor predicted and are left out of the mean.",)
                    if absent
                    else ()
                ),
            )
        never = sum(int(n) == 0 for n in rows.reshape(len(rows), 3, -1)[:, -1].sum(axis=0))
        return (
            f"{videos}; chance keeps the joints of the first frame, which is not scored.",
            f"Joints whose labels vanish count as {'misses' if self.settings.lost == 'missed' else 'nothing'}.",
            *((f"{never} joints are in no first frame and are left out of the mean.",) if never else ()),
        )


def _size_text(size: Sequence[int]) -> str:
    """Return a height and width as text, the width first."""
    return f"{size[1]} x {size[0]}"


def _taken(queue: "deque[torch.Tensor]") -> "Iterator[torch.Tensor]":
    """Yield what is put into a queue; each item is there before it is asked for."""
    while True:
        yield queue.popleft()


def frame_fit(original: tuple[int, int], settings: Settings, multiple: int) -> Fitted:
    """Return the size to which the frames of a video are resized.

    >>> frame_fit((480, 854), Settings(short=480, multiple=64), 16).canvas, frame_fit((480, 854), Settings(), 16).canvas
    ((480, 832), (480, 848))
    >>> frame_fit((480, 854), Settings(side=560), 16).canvas
    (560, 560)
    """
    if settings.side:
        wanted = settings.side, settings.side
    elif settings.short and settings.multiple:
        wanted = frame_size(*original, short=settings.short, multiple=settings.multiple)
    elif settings.short:
        scale = settings.short / min(original)
        wanted = round(original[0] * scale), round(original[1] * scale)
    else:
        wanted = original
    height, width = (max(multiple, round(side / multiple) * multiple) for side in wanted)
    return Fitted(original, (height, width), (0, 0), (height, width))


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Count the frames."""
    return Cost(images=shapes.test * shapes.frames, rest="the search for each cell in earlier frames")


PROTOCOL = Protocol(
    version=2,
    summary="Tracking of objects, parts and joints by propagation of the first labels, without training.",
    settings=Settings,
    kind=Tracking.kind(cost),
)
