"""Propagation of the labels of the first frame of a video by every map of a run."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch

from sslbench.errors import DataError
from sslbench.protocols._parts.dense_images import Fitted, maps_and_pixels, network_input, pictures
from sslbench.protocols._parts.untrained import MapRun
from sslbench.protocols.tracking.settings import Settings
from sslbench.solvers.propagation import frame_size, propagate_video

FirstLabels = Callable[[Fitted, tuple[int, int], str], torch.Tensor]
"""Function from the place of the first frame in the input, a grid and the frame's name to labels (C, h, w)."""

_TOGETHER = 8
"""Frames that are encoded together, at most."""


def propagated(
    run: MapRun[Settings], rows: Sequence[int], first: FirstLabels
) -> Iterator[tuple[Fitted, dict[str, torch.Tensor]]]:
    """Yield the soft labels (C, h, w) of each frame of a video by the name of each map, from those of the first frame.

    Memory holds the features of 1 + `previous` frames.

    Args:
        run: network and frames.
        rows: positions of the frames of the video, in order.
        first: labels of the first frame on a grid.

    Raises:
        DataError: a frame cannot be read, or is not of the size of the first one.
    """
    queues: dict[str, deque[torch.Tensor]] = {}
    labels: dict[str, Iterator[torch.Tensor]] = {}
    for fitted, maps in _encoded(run, rows):
        found = {}
        for name, value in maps.items():
            if name not in queues:
                queues[name] = deque()
                path = run.test.every_image().images.path(rows[0])
                own = first(fitted, (int(value.shape[1]), int(value.shape[2])), path).to(value.device)
                labels[name] = propagate_video(
                    _taken(queues[name]), own, run.settings.propagation(), max_memory=run.settings.max_memory
                )
            queues[name].append(value)
            found[name] = next(labels[name])
        yield fitted, found


def _encoded(run: MapRun[Settings], rows: Sequence[int]) -> Iterator[tuple[Fitted, dict[str, torch.Tensor]]]:
    """Yield the maps (D, h, w) of each frame; a few frames are encoded together."""
    fitted: Fitted | None = None
    batch: list[torch.Tensor] = []
    together, preprocessing = min(_TOGETHER, run.engine.batch_size), run.preprocessing
    for done, (row, picture) in enumerate(pictures(run.test, rows, preprocessing, run.engine), start=1):
        size = (int(picture.shape[1]), int(picture.shape[2]))
        if fitted is None:
            fitted = frame_fit(size, run.settings, run.encoder.multiple)
        if size != fitted.original:
            name = run.test.every_image().images.path(row)
            raise DataError(f"{name} is {size_text(size)} pixels, the first frame {size_text(fitted.original)}")
        batch.append(network_input(picture, fitted, preprocessing))
        if len(batch) == together or done == len(rows):
            maps = maps_and_pixels(run.encoder, torch.cat(batch).to(run.encoder.device))
            for i in range(len(batch)):
                yield fitted, {name: value[i] for name, value in maps.items()}
            batch = []


def size_text(size: tuple[int, int]) -> str:
    """Return a height and width as text, the width first."""
    return f"{size[1]} x {size[0]}"


def _taken(queue: "deque[torch.Tensor]") -> Iterator[torch.Tensor]:
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
