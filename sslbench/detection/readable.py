"""Check of all images before hours of training; the error lists all unreadable ones."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.loading import loader
from sslbench.data.objects.types import ObjectSource
from sslbench.data.wording import counted
from sslbench.detection.batches import picture_of
from sslbench.distributed.collectives import gather_objects, rank, world_size
from sslbench.errors import DataError, UsageError
from sslbench.runtime.progress import Progress

_CHUNK = 16
_SHOWN = 20
_REMEDY = "Replace them, or remove them and their objects: scores on fewer images would not be comparable."


def check_readable(parts: Sequence[ObjectSource], *, workers: int = 0, progress: Progress | None = None) -> None:
    """Read every image once; every process calls this and reads its share.

    Training reads each image many times, so the relative cost is small.

    Args:
        parts: parts of the data.
        workers: number of decoding processes; 0: this one.
        progress: called with the name of the step, images done, total.

    Raises:
        DataError: names the images that cannot be read, or whose size differs from that of their annotations.
    """
    messages = []
    for part in parts:
        own = np.arange(rank(), len(part), world_size())
        chunks = [own[start : start + _CHUNK] for start in range(0, len(own), _CHUNK)]
        found: list[str] = []
        done = 0
        items = loader.run(_Read(part, chunks), workers, start_method=part.reading.start_method)
        for chunk, bad in zip(chunks, items, strict=True):
            found += bad
            done += len(chunk)
            if progress is not None:
                progress(f"reading the images of {part.name}", min(done * world_size(), len(part)), len(part))
        everywhere = sorted(line for lines in gather_objects(found) for line in lines)
        if everywhere:
            shown = everywhere[:_SHOWN]
            shown += [f"... and {len(everywhere) - _SHOWN} more"] if len(everywhere) > _SHOWN else []
            head = f"{part.name}: {len(everywhere)} of {counted(len(part), 'image')} cannot be used:"
            messages.append("\n".join([head, *(f"  {line}" for line in shown)]))
    if messages:
        raise DataError("\n".join(messages), _REMEDY)


class _Read(Dataset[list[str] | UsageError]):
    """Dataset of the problems of each chunk's images, one line each."""

    def __init__(self, source: ObjectSource, chunks: list[npt.NDArray[np.int64]]) -> None:
        self.source, self.chunks = source, chunks

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, item: int) -> list[str] | UsageError:
        found = []
        for index in self.chunks[item].tolist():
            try:
                picture = picture_of(self.source, index)
                self.source.check_size(index, *picture.shape[1:])
            except UnreadableImage as error:
                found.append(str(error))
            except UsageError as error:  # a decoder returned no image; DataLoader would print a traceback
                return error
            except DataError as error:
                found.append(str(error).splitlines()[0])
        return found
