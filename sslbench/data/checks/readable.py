"""Images that detection cannot use: not readable, of another size than their boxes, or too narrow.

`check-data --boxes` and every evaluation with boxes ask these functions, so that they agree.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.utils.data import Dataset

from sslbench.arrays import IntArray
from sslbench.data.decode.handlers import make_decoder
from sslbench.data.decode.picture import UnreadableImage, Wanted
from sslbench.data.images import Files
from sslbench.data.loading import loader
from sslbench.data.objects.boxes import size_in_file
from sslbench.data.objects.types import ObjectSource
from sslbench.errors import DataError, UsageError

Problem = tuple[int, str]
"""(position of the image, sentence that names it)"""

_CHUNK = 16


def picture_of(source: ObjectSource, index: int) -> Tensor:
    """Decode one upright picture, uint8 (3, height, width), by the source's `reading`.

    Raises:
        UnreadableImage: the file holds no complete picture.
        UsageError: there is no decoder of that name.
    """
    reading = source.reading
    decoder = make_decoder(reading.decoder, Wanted(max_pixels=reading.max_pixels), source.images)
    return loader.read(source.images, index, decoder).image


def unusable(
    source: ObjectSource, rows: IntArray, *, workers: int = 0, progress: Callable[[int], None] | None = None
) -> list[Problem]:
    """Decode images and return those that cannot be read, or have another size than their boxes are for.

    Args:
        source: the images.
        rows: (n,), positions of those to decode.
        workers: number of decoding processes; 0: this one.
        progress: called with the number of images that are done.

    Raises:
        UsageError: a decoder is not known, or returns no image.
    """
    chunks = [rows[start : start + _CHUNK] for start in range(0, len(rows), _CHUNK)]
    found: list[Problem] = []
    done = 0
    items = loader.run(_Read(source, chunks), workers, start_method=source.reading.start_method)
    for chunk, bad in zip(chunks, items, strict=True):
        found += bad
        done += len(chunk)
        if progress is not None:
            progress(done)
    return found


def of_other_size(source: ObjectSource, rows: IntArray) -> list[Problem]:
    """Return the images whose file says in its head that it has another size than their boxes are for.

    Much faster than decoding. Images that are no files, or are read by a decoder of the user's, are skipped.
    """
    if not isinstance(source.images, Files) or source.reading.decoder:
        return []
    found = []
    for index in rows.tolist():
        size = size_in_file(Path(source.images.path(index)))
        try:
            if all(size):
                source.check_size(index, *size)
        except DataError as error:
            found.append((index, str(error).splitlines()[0]))
    return found


def narrow(source: ObjectSource, longest: int) -> npt.NDArray[np.int64]:
    """Return the images of which nothing is left when the longer side is reduced to `longest` pixels."""
    shorter, longer = source.target.sizes.min(axis=1), source.target.sizes.max(axis=1)
    return np.flatnonzero(2 * shorter * longest < longer)  # less than half a pixel; 0, 0 is an unknown size


class _Read(Dataset[list[Problem] | UsageError]):
    """Dataset of the problems of each chunk's images."""

    def __init__(self, source: ObjectSource, chunks: list[npt.NDArray[np.int64]]) -> None:
        self.source, self.chunks = source, chunks

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, item: int) -> list[Problem] | UsageError:
        found = []
        for index in self.chunks[item].tolist():
            try:
                picture = picture_of(self.source, index)
                self.source.check_size(index, *picture.shape[1:])
            except UnreadableImage as error:
                found.append((index, str(error)))
            except UsageError as error:  # a decoder returned no image; DataLoader would print a traceback
                return error
            except DataError as error:
                found.append((index, str(error).splitlines()[0]))
        return found
