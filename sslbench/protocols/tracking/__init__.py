"""Tracking of objects, parts and joints by propagation of the labels of the first frame, without training.

Each cell of a frame takes the mean of the labels of the most similar cells of the first frame and of a few frames
before (`solvers.propagation`; Jabri et al. 2020, Caron et al. 2021). The kind of the data decides the score:

- Masks of objects (DAVIS 2017, Pont-Tuset et al.): region similarity J and boundary measure F of every object, averaged
  over its frames without the first and the last one, and over all objects. Objects are those of the first frame; later
  ones count as background.
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

import numpy as np
import numpy.typing as npt

from sslbench.data.poses import Poses
from sslbench.data.source import Labels
from sslbench.data.tracks import Videos
from sslbench.errors import DataError, UsageError
from sslbench.labels import LABELS, LabelKind
from sslbench.metrics.intervals import Units
from sslbench.metrics.summary import measures, summarise
from sslbench.protocols._parts.dense_images import pixel_floors
from sslbench.protocols._parts.untrained import MapRun, maps_of_layers, without_training
from sslbench.protocols.protocol import NotEstimated, Protocol
from sslbench.protocols.tracking.joints import track_joints
from sslbench.protocols.tracking.masks import track_objects, track_parts
from sslbench.protocols.tracking.settings import Settings
from sslbench.protocols.tracking.tracked import KEPT, FrameDone, Tracked
from sslbench.results import Outcome

VIDEOS: frozenset[LabelKind] = frozenset({"tracks", "parts", "poses"})
_OF_MASKS, _OF_JOINTS = ("first", "scaled"), ("peak", "lost")


def check(settings: Settings, labels: Labels) -> None:
    """Refuse settings and data that cannot work or have no effect, before any frame is decoded.

    Raises:
        UsageError: a setting is out of its range, or has no effect.
        DataError: the data are no videos with masks or joints.
    """
    if labels.kind not in VIDEOS:
        raise DataError(
            f"tracking needs videos with masks or joints, and these samples have {LABELS[labels.kind].text}"
        )
    least_of = {"short": 0, "side": 0, "multiple": 0, "previous": 0, "topk": 1, "peak": 1, "radius": 0.0}
    for name, least in least_of.items():
        if getattr(settings, name) < least:
            raise UsageError(f"tracking: {name} must be at least {least}, not {getattr(settings, name)}")
    for name in ("temperature", "max_memory"):
        if not getattr(settings, name) > 0:
            raise UsageError(f"tracking: {name} must be positive, not {getattr(settings, name)}")
    if settings.side and settings.short:
        raise UsageError("tracking: short has no effect beside side", "Give one of the two.")
    if settings.multiple and not settings.short:
        raise UsageError("tracking: multiple has no effect on frames of their own size", "Give short= as well.")
    if not settings.radius and (settings.window != Settings().window or not settings.window_on_first):
        raise UsageError("tracking: without a radius there is no window", "Leave window and window_on_first out.")
    for name in _OF_MASKS if labels.kind == "poses" else _OF_JOINTS:
        if getattr(settings, name) != (usual := getattr(Settings(), name)):
            raise UsageError(
                f"tracking: {name}={getattr(settings, name)} has no effect on {LABELS[labels.kind].text}",
                f"Leave it out, or give {name}={usual} beside a preset that has it.",
            )


def score(run: MapRun[Settings]) -> dict[str, Outcome]:
    """Track the objects, parts or joints of the videos of the test part.

    Raises:
        DataError: the data are no videos, frames cannot be read, or a mask is not of the size of its frame.
    """
    tuples, report = run.test.tuples, run.report
    if not isinstance(tuples, Videos | Poses):
        raise DataError(f"{run.test.name} has no videos")
    total, done = sum(len(rows) for rows in tuples.frames), 0

    def frame_done() -> None:
        nonlocal done
        done += 1
        if report is not None:
            report(done, total)

    found = [_tracked(run, tuples, number, frame_done) for number in range(len(run.test))]
    floor_of = pixel_floors({each.name: found[0].grids[each.name] for each in run.encoder.inputs})
    return {each.name: _outcome(found, each.name, floor_of[each.name], run) for each in run.encoder.inputs}


def _tracked(run: MapRun[Settings], tuples: Videos | Poses, number: int, frame_done: FrameDone) -> Tracked:
    if isinstance(tuples, Poses):
        return track_joints(run, tuples, number, frame_done)
    track = track_parts if run.test.labels.kind == "parts" else track_objects
    return track(run, tuples, number, frame_done)


def _outcome(found: list[Tracked], name: str, floor: str, run: MapRun[Settings]) -> Outcome:
    labels = run.test.labels
    rows = {key: np.stack([video.rows[key] for video in found]).astype(np.float32) for key in (name, floor, KEPT)}
    metrics, headline, per_class = summarise(labels.kind, labels.classes, labels.values, rows[name], seed=run.seed)
    return Outcome(
        metrics=metrics,
        headline=headline,
        scores=rows[name],
        per_class=per_class,
        chance=_values(labels, rows[KEPT]),
        floors={"pixels": _values(labels, rows[floor])},
        notes=_notes(rows[name], run),
    )


def _values(labels: Labels, rows: npt.NDArray[np.float32]) -> dict[str, float]:
    """Return the metrics of rows of scores, without intervals."""
    values: dict[str, float] = {}
    for measure in measures(labels.kind, labels.values, rows, Units.of(len(rows), None)):
        each = measure.statistic(np.ones((1, len(rows))))[0].tolist()
        values |= dict(zip(measure.names, each, strict=True))
    return values


def _notes(rows: npt.NDArray[np.float32], run: MapRun[Settings]) -> tuple[str, ...]:
    test, videos = run.test, f"{len(run.test):,} videos"
    if test.labels.kind == "tracks":
        return (
            f"{int(rows[:, 0].sum()):,} objects of {videos}; chance keeps the masks of the first frame.",
            "The first and the last frame are not scored.",
        )
    counts = rows.reshape(len(rows), 3, -1).sum(axis=(0, 1), dtype=np.float64)
    if test.labels.kind == "parts":
        absent = int((counts == 0).sum())
        return (
            f"{videos}; chance keeps the classes of the first frame. All frames count, of the first one its labels on "
            "the grid.",
            *(
                (f"{absent} classes are neither labelled nor predicted and are left out of the mean.",)
                if absent
                else ()
            ),
        )
    never = sum(int(n) == 0 for n in rows.reshape(len(rows), 3, -1)[:, -1].sum(axis=0))
    return (
        f"{videos}; chance keeps the joints of the first frame, which is not scored.",
        f"Joints whose labels vanish count as {'misses' if run.settings.lost == 'missed' else 'nothing'}.",
        *((f"{never} joints are in no first frame and are left out of the mean.",) if never else ()),
    )


WORK = NotEstimated("the number of frames is known when the videos are read")

PROTOCOL = Protocol(
    version=1,
    summary="Tracking of objects, parts and joints by propagation of the first labels, without training.",
    settings=Settings,
    kind=without_training(check, maps_of_layers, score, work=WORK, label_kinds=VIDEOS),
)
