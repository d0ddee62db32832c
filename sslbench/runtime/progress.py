"""Types of progress callbacks."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Callback with (name of the stage, images done, images in all)."""

StageProgress = Callable[[int, int], None]
"""Callback of a single stage with (images done, images in all)."""


def stage_progress(progress: Progress | None, stage: str) -> StageProgress | None:
    """Return the callback of one stage, or None if there is no callback.

    >>> stage_progress(print, "encode")(3, 10)
    encode 3 10

    Args:
        progress: callback of all stages.
        stage: name of the stage.
    """
    return None if progress is None else lambda done, total: progress(stage, done, total)
