"""Check of all images before hours of training; the error lists all unreadable ones."""

from collections.abc import Sequence

import numpy as np

from sslbench.data.checks.readable import unusable
from sslbench.data.objects.types import ObjectSource
from sslbench.data.wording import counted
from sslbench.distributed.collectives import gather_objects, rank, world_size
from sslbench.errors import DataError
from sslbench.runtime.progress import Progress

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

        def tell(done: int, part: ObjectSource = part) -> None:
            if progress is not None:
                progress(f"reading the images of {part.name}", min(done * world_size(), len(part)), len(part))

        found = [line for _, line in unusable(part, own, workers=workers, progress=tell)]
        everywhere = sorted(line for lines in gather_objects(found) for line in lines)
        if everywhere:
            shown = everywhere[:_SHOWN]
            shown += [f"... and {len(everywhere) - _SHOWN} more"] if len(everywhere) > _SHOWN else []
            head = f"{part.name}: {len(everywhere)} of {counted(len(part), 'image')} cannot be used:"
            messages.append("\n".join([head, *(f"  {line}" for line in shown)]))
    if messages:
        raise DataError("\n".join(messages), _REMEDY)
