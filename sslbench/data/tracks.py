"""Videos with masks of objects, or of classes of parts, in every frame."""

from collections.abc import Mapping, Sequence

import numpy as np

from sslbench.data.source import Source
from sslbench.data.wording import some
from sslbench.errors import DataError
from sslbench.targets.images import Images
from sslbench.targets.videos import Ids, ObjectIds, Parts, Tracks

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

    Args:
        name: location as the user wrote it, with the split.
        videos: name -> positions of its frames, in order.
        images: all frames.
        masks: of the same frames.
        notes: of the source.
        classes: names of the numbers of the masks, background first; () if these are numbers of objects.

    Raises:
        DataError: there is no video; or videos have too few frames to score one (three, of classes two), or no object
            or part in the first frame. All of them are listed.
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
