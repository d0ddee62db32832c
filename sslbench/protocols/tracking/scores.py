"""Tracking in the videos of a test part, and the outcome of each map."""

import numpy as np
import numpy.typing as npt

from sslbench.metrics.summary import summarise, without_intervals
from sslbench.protocols._parts.dense_images import pixel_floors
from sslbench.protocols._parts.untrained import MapRun
from sslbench.protocols.tracking.joints import track_joints
from sslbench.protocols.tracking.masks import track_objects, track_parts
from sslbench.protocols.tracking.settings import Settings
from sslbench.protocols.tracking.tracked import KEPT, FrameDone, Tracked
from sslbench.results import Outcome
from sslbench.targets.videos import MaskedVideos, Parts, Poses, Tracks, Videos


def score(run: MapRun[Settings]) -> dict[str, Outcome]:
    """Track the objects, parts or joints of the videos of the test part.

    Raises:
        DataError: the data are no videos, frames cannot be read, or a mask is not of the size of its frame.
    """
    videos, report = Videos.of(run.test.target), run.report
    total, done = sum(len(rows) for rows in videos.frames), 0

    def frame_done() -> None:
        nonlocal done
        done += 1
        if report is not None:
            report(done, total)

    found = [_tracked(run, videos, number, frame_done) for number in range(len(run.test))]
    floor_of = pixel_floors({each.name: found[0].grids[each.name] for each in run.encoder.inputs})
    return {each.name: _outcome(found, each.name, floor_of[each.name], run) for each in run.encoder.inputs}


def _tracked(run: MapRun[Settings], videos: Videos, number: int, frame_done: FrameDone) -> Tracked:
    if isinstance(videos, Poses):
        return track_joints(run, videos, number, frame_done)
    track = track_parts if isinstance(videos, Parts) else track_objects
    return track(run, MaskedVideos.of(videos), number, frame_done)


def _outcome(found: list[Tracked], name: str, floor: str, run: MapRun[Settings]) -> Outcome:
    labels = run.test.target
    rows = {key: np.stack([video.rows[key] for video in found]).astype(np.float32) for key in (name, floor, KEPT)}
    metrics, headline, per_class = summarise(type(labels), labels.classes, labels.values, rows[name], seed=run.seed)
    return Outcome(
        metrics=metrics,
        headline=headline,
        scores=rows[name],
        per_class=per_class,
        chance=without_intervals(type(labels), labels.values, rows[KEPT]),
        floors={"pixels": without_intervals(type(labels), labels.values, rows[floor])},
        notes=_notes(rows[name], run),
    )


def _notes(rows: npt.NDArray[np.float32], run: MapRun[Settings]) -> tuple[str, ...]:
    test, videos = run.test, f"{len(run.test):,} videos"
    if isinstance(test.target, Tracks):
        return (
            f"{int(rows[:, 0].sum()):,} objects of {videos}; chance keeps the masks of the first frame.",
            "The first and the last frame are not scored.",
        )
    counts = rows.reshape(len(rows), 3, -1).sum(axis=(0, 1), dtype=np.float64)
    if isinstance(test.target, Parts):
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
