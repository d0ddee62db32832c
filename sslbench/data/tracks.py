"""Videos with masks of objects, of classes of parts, or with joints, in every frame."""

from collections.abc import Mapping, Sequence

import numpy as np

from sslbench.arrays import BoolArray, FloatArray
from sslbench.data.source import Source
from sslbench.data.wording import some
from sslbench.errors import DataError
from sslbench.targets.target import Images
from sslbench.targets.videos import Ids, ObjectIds, Parts, Poses, Tracks

UNLABELLED = 255
"""Number of pixels without a class, in masks of classes."""


def videos_source(
    name: str,
    videos: Mapping[str, Sequence[int]],
    images: Images,
    masks: ObjectIds,
    notes: tuple[str, ...] = (),
    *,
    classes: tuple[str, ...] = (),
) -> Source:
    """Return the source of videos, in order of their names; the first masks are read to check them.

    `videos` maps names to the positions of their frames. `classes` names the numbers of the masks, background first; ()
    if these are numbers of objects.
    """
    if not videos:
        raise DataError(f"{name} has no video")
    ids = tuple(sorted(videos))
    frames = tuple(tuple(videos[video]) for video in ids)
    least, few, thing = (
        (2, "have fewer than two frames: the first one is given", "part")
        if classes
        else (
            3,
            "have fewer than three frames: the first one is given, and neither it nor the last one is scored",
            "object",
        )
    )
    short = [f"{video} ({len(rows)})" for video, rows in zip(ids, frames, strict=True) if len(rows) < least]
    empty = [
        video
        for video, rows in zip(ids, frames, strict=True)
        if len(rows) >= least and not _with_content(masks.read_ids(rows[0]), classes)
    ]
    problems = {few: short, f"have no {thing} in the first frame, so there is nothing to track": empty}
    found = [
        f"{len(which):,} of {len(ids):,} videos {what}: {some(which, 5)}" for what, which in problems.items() if which
    ]
    if found:
        raise DataError(f"{name}:\n" + "\n".join(f"  {line}" for line in found), "Leave these videos out.")
    first = images.select(np.array([rows[0] for rows in frames], dtype=np.int64))
    target = Parts(classes, images, masks, frames) if classes else Tracks(images, masks, frames)
    return Source(name, ids, target, first, notes)


def _with_content(ids: Ids, classes: tuple[str, ...]) -> bool:
    return bool((ids[ids != UNLABELLED] if classes else ids).any())


def inside(joints: FloatArray, size: tuple[int, int]) -> BoolArray:
    """Return the joints (..., 2) that lie within an image of this height and width, (...).

    >>> inside(np.array([[0.0, 3.4], [-2.0, 1.0], [2.0, 3.6]]), (4, 4)).tolist()
    [True, False, False]
    """
    # Pixels reach half a pixel around their centres, which lie at whole numbers.
    low, high = np.full(2, -0.5), np.array(size[::-1]) - 0.5
    return np.asarray(((joints >= low) & (joints < high)).all(axis=-1))


def poses_source(
    name: str,
    videos: Mapping[str, Sequence[int]],
    images: Images,
    joints: Mapping[str, FloatArray],
    sizes: Mapping[str, tuple[int, int]],
    names: tuple[str, ...],
    notes: tuple[str, ...] = (),
) -> Source:
    """Return the source of videos, in order of their names.

    `videos` maps names to the positions of their frames, `sizes` to height and width, `joints` to (T, J, 2), see
    `Poses`.
    """
    if not videos:
        raise DataError(f"{name} has no video")
    ids = tuple(sorted(videos))
    problems: dict[str, list[str]] = {}
    for video in ids:
        if problem := _problem(joints[video], sizes[video]):
            problems.setdefault(problem, []).append(video)
    if problems:
        lines = (f"  {len(v):,} of {len(ids):,} videos {what}: {some(v, 5)}" for what, v in problems.items())
        raise DataError(f"{name}:\n" + "\n".join(lines), "Leave these videos out.")
    frames = tuple(tuple(videos[video]) for video in ids)
    first = images.select(np.array([rows[0] for rows in frames], dtype=np.int64))
    target = Poses(names, images, frames, tuple(joints[video] for video in ids))
    return Source(name, ids, target, first, notes)


def _problem(joints: FloatArray, size: tuple[int, int]) -> str:
    if len(joints) < 2:
        return "have fewer than two frames: the first one is given"
    if not np.isfinite(joints).all():
        return "have joints whose positions are no finite numbers"
    given = inside(joints[0], size)
    if given.sum() < 2:
        return "have fewer than two joints inside the first frame"
    if not (np.ptp(joints[:, given], axis=1) > 0).any(axis=1).all():
        return "have a frame with all joints at one place, so that the person has no size"
    return ""
