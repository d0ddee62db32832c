"""Statistics over all label maps of a source: pixels per class, values that are no class, damage."""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from sslbench.data.decode.handlers import Reading
from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.maps.sizes import size_and_turn, size_difference
from sslbench.data.maps.types import CodedMaps, distinct
from sslbench.data.workers import run
from sslbench.errors import SslbenchError
from sslbench.targets.label_maps import UNKNOWN, Grid

_CHUNK = 8
_STEPS, _EDGES = 0.2, 50


@dataclasses.dataclass(frozen=True, eq=False)
class MapFacts:
    """Facts of one map.

    Attributes:
        index: in the source.
        path: name of the map in messages.
        unreadable: why it cannot be read; then the rest is empty.
        pixels: (C,) of each class.
        ignored: pixels that do not count.
        unknown: value that is no class -> pixels.
        smooth: between its classes lie values in between, as when a picture is resized.
        size: difference to the size of its image.
        broken: see `RawMap`.
        contradictions: see `RawMap`.
        crowds: see `RawMap`.
        instances: their number; None if nothing tells them apart.
        turned: the image is turned by EXIF.
    """

    index: int
    path: str
    unreadable: str | None = None
    pixels: npt.NDArray[np.int64] = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    ignored: int = 0
    unknown: dict[int, int] = dataclasses.field(default_factory=dict)
    smooth: bool = False
    size: str | None = None
    broken: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    crowds: int = 0
    instances: int | None = None
    turned: bool = False


def map_facts(source: CodedMaps, rows: npt.NDArray[np.int64], *, workers: int, reading: Reading) -> list[MapFacts]:
    """Read all maps, in worker processes if requested, and return the facts of each."""
    chunks = [rows[start : start + _CHUNK] for start in range(0, len(rows), _CHUNK)]
    dataset = _Facts(source, chunks, reading.max_pixels)
    return [one for chunk in run(dataset, workers, start_method=reading.start_method) for one in chunk]


class _Facts(Dataset[Any]):
    """Data set of a loader: item i holds the facts of chunk i."""

    def __init__(self, source: CodedMaps, chunks: list[npt.NDArray[np.int64]], max_pixels: int) -> None:
        self.source, self.chunks, self.max_pixels = source, chunks, max_pixels

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, item: int) -> list[MapFacts] | SslbenchError:
        try:
            return [_facts(self.source, index, self.max_pixels) for index in self.chunks[item].tolist()]
        except SslbenchError as error:
            return error


def _facts(source: CodedMaps, index: int, max_pixels: int) -> MapFacts:
    path = source.maps.path(index)
    try:
        raw = source.maps.read(index, max_pixels)
    except UnreadableImage as error:
        return MapFacts(index, path, error.reason if error.path == path else str(error))
    semantic = source.coding.positions(raw.values)
    counts = np.bincount(semantic.reshape(-1) - UNKNOWN, minlength=len(source.classes) + 2)
    values, pixels = np.unique(raw.values[semantic == UNKNOWN], return_counts=True)
    size, turned = size_and_turn(source.images, index)
    objects = None if raw.instances is None else distinct(raw.instances)[0]
    return MapFacts(
        index=index,
        path=path,
        pixels=counts[2:].astype(np.int64),
        ignored=int(counts[1]),
        unknown=dict(zip(values.tolist(), pixels.tolist(), strict=True)),
        smooth=not source.coding.colours and is_smooth(raw.values),
        size=size_difference(raw.values.shape, size),
        broken=raw.broken,
        contradictions=raw.contradictions,
        crowds=raw.crowds,
        instances=None if objects is None else int((objects > 0).sum()),
        turned=turned,
    )


def is_smooth(values: Grid) -> bool:
    """Return whether a map was smoothed: at borders of two classes there are values between theirs.

    Counted are pixels at a border, and among them those whose value lies strictly between the two neighbours' on either
    side, along rows and columns. Classes have no order, so in a map of classes that is rare.
    """
    steps = edges = 0
    rows, columns = (values[:-2], values[1:-1], values[2:]), (values[:, :-2], values[:, 1:-1], values[:, 2:])
    for before, at, after in (rows, columns):
        edges += int(((before != at) | (at != after)).sum())
        steps += int((((before < at) & (at < after)) | ((before > at) & (at > after))).sum())
    return edges >= _EDGES and steps > _STEPS * edges
