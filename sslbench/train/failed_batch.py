"""File of a batch whose loss is not finite."""

from pathlib import Path

from sslbench.data.loading.pretraining import RawBatch
from sslbench.weights.save import new_file, write_torch


def keep_failed(folder: Path, raw: RawBatch, ids: tuple[str, ...], *, step: int, rank: int) -> Path:
    """Save the batch whose loss is not finite, and return the file.

    It has the views, the labels, the ids of the images, and the changes of colours that were left to the device.
    """
    path = folder / f"failed_batch_step{step + 1}_process{rank}.pt"
    content = {"views": list(raw.views), "labels": raw.labels, "indices": raw.indices, "ids": list(ids)}
    if raw.colours is not None:
        content["colours"] = raw.colours
    with new_file(path) as temporary:
        write_torch(temporary, content)
    return path
