"""Survey of all targets before training: what cannot be used is listed at once, and floors are computed."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from torch.utils.data import Dataset

from sslbench.arrays import FloatArray, IntArray
from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.loading.joint import PixelTarget, ReadTarget
from sslbench.data.maps.types import size_and_turn
from sslbench.data.source import Source
from sslbench.data.wording import counted
from sslbench.data.workers import run
from sslbench.errors import DataError, SslbenchError
from sslbench.features.array import ExtractSettings
from sslbench.protocols._parts.dense.task import Cells
from sslbench.runtime.progress import StageProgress
from sslbench.targets.label_maps import LabelMaps

# Function from a target and the height and width of a grid to sums and numbers in its cells; picklable.
ReadCells = Callable[[PixelTarget, tuple[int, int]], Cells]

# Grid of the floor 'position only'.
GRID = (32, 32)
_CHUNK = 32
_LISTED = 10


@dataclasses.dataclass(frozen=True)
class Survey:
    """Targets of a source.

    Attributes:
        sums: (K, 32, 32), sum over the known pixels of each cell of what the best output is there.
        numbers: (32, 32), known pixels.
        short_side: median over the images.
        unknown: images without a known pixel.
        unreadable: images whose head cannot be read.
        problems: reasons of targets that cannot be used.
    """

    sums: FloatArray
    numbers: FloatArray
    short_side: float
    square: bool
    unknown: tuple[int, ...]
    unreadable: int = 0
    problems: tuple[str, ...] = ()

    @property
    def constant(self) -> FloatArray:
        """Mean of the best output over all known pixels, (K, 1, 1)."""
        return np.asarray(self.sums.sum(axis=(1, 2)) / self.numbers.sum())[:, None, None]

    @property
    def by_position(self) -> FloatArray:
        """Mean of the best output in each cell, (K, 32, 32); the constant where no pixel is known."""
        known = self.numbers > 0
        return np.where(known, self.sums / np.where(known, self.numbers, 1), self.constant)


def survey(
    source: Source, read: ReadTarget, cells: ReadCells, engine: ExtractSettings, progress: StageProgress | None = None
) -> Survey:
    """Read every target of a source once; see `refuse_problems` for those that cannot be used."""
    chunks = [np.arange(start, min(start + _CHUNK, len(source))) for start in range(0, len(source), _CHUNK)]
    found: list[_Chunk] = []
    # Without a shape: only the first target says how many values a cell has.
    sums, numbers = np.zeros(()), np.zeros(())
    done = 0
    for chunk in run(_Targets(source, read, cells, chunks), engine.workers, start_method=engine.start_method):
        if chunk.sums is not None and chunk.numbers is not None:
            sums, numbers = sums + chunk.sums, numbers + chunk.numbers
        found.append(dataclasses.replace(chunk, sums=None, numbers=None))  # those of 150 classes take a megabyte
        done += chunk.images
        if progress is not None:
            progress(done, len(source))
    unknown = tuple(index for chunk in found for index in chunk.unknown)
    sizes = np.concatenate([chunk.sizes for chunk in found])
    return Survey(
        sums,
        numbers,
        float(np.median(sizes.min(axis=1))),
        bool((sizes[:, 0] == sizes[:, 1]).all()),
        unknown,
        sum(chunk.unreadable for chunk in found),
        tuple(text for chunk in found for text in chunk.problems),
    )


def refuse_problems(protocol: str, no_value: str, found: Sequence[tuple[Source, Survey]]) -> None:
    """Refuse targets that cannot be used, those of all parts in one message, and parts of which no pixel is known."""
    if problems := [text for _, surveyed in found for text in surveyed.problems]:
        where = " and ".join(source.name for source, surveyed in found if surveyed.problems)
        more = f"\n  and {len(problems) - _LISTED} more" if len(problems) > _LISTED else ""
        # Some layouts with maps, such as manifests, are checked as images without it.
        flag = " --label-maps" if isinstance(found[0][0].target, LabelMaps) else ""
        raise DataError(
            f"{protocol}: {counted(len(problems), 'target')} of {where} cannot be used:\n  "
            + "\n  ".join(problems[:_LISTED])
            + more,
            f"Repair or remove them; `sslbench check-data{flag}` lists all of them.",
        )
    empty = [source.name for source, each in found if len(each.unknown) + each.unreadable == len(source)]
    if empty:
        raise DataError(f"{protocol}: no pixel of {' and '.join(empty)} counts: {no_value}")


@dataclasses.dataclass(frozen=True)
class _Chunk:
    """Targets of some images."""

    images: int
    sums: FloatArray | None
    numbers: FloatArray | None
    sizes: IntArray
    problems: tuple[str, ...]
    unknown: tuple[int, ...]
    unreadable: int


@dataclasses.dataclass(frozen=True)
class _Targets(Dataset[_Chunk]):
    """Dataset of the chunks of a source."""

    source: Source
    read: ReadTarget
    cells: ReadCells
    chunks: list[np.ndarray]

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, item: int) -> _Chunk:
        if item >= len(self):
            raise IndexError(item)
        sums: FloatArray | None = None
        numbers: FloatArray | None = None
        sizes, problems, unknown, unreadable = [], [], [], 0
        for index in self.chunks[item].tolist():
            size = size_and_turn(self.source.images, index)[0]
            if size is None:
                unreadable += 1
                continue
            sizes.append(size)
            try:
                target = self.read(self.source, index, size)
            except (SslbenchError, UnreadableImage) as error:
                # Collected, not raised: all targets that cannot be used stand in one message.
                problems.append(error.message if isinstance(error, SslbenchError) else str(error))
                continue
            own_sums, own_numbers = self.cells(target, GRID)
            if not own_numbers.any():
                unknown.append(index)
            sums = own_sums.astype(np.float64) if sums is None else sums + own_sums
            numbers = own_numbers.astype(np.float64) if numbers is None else numbers + own_numbers
        return _Chunk(
            len(self.chunks[item]),
            sums,
            numbers,
            # Without a readable image the list is empty, and its shape (0,) would not join (n, 2).
            np.array(sizes, dtype=np.int64).reshape(-1, 2),
            tuple(problems),
            tuple(unknown),
            unreadable,
        )
