"""File of a batch whose loss is not finite."""

from pathlib import Path

from sslbench.data.loading.pretraining import RawBatch
from sslbench.weights.save import new_file, write_torch


def keep_failed(folder: Path, raw: RawBatch, ids: tuple[str, ...], *, step: int, rank: int) -> Path:
    """Save the batch whose loss is not finite: views, labels, and the ids of its images; return the file."""
    path = folder / f"failed_batch_step{step + 1}_process{rank}.pt"
    content = {"views": list(raw.views), "labels": raw.labels, "indices": raw.indices, "ids": list(ids)}
    with new_file(path) as temporary:
        write_torch(temporary, content)
    return path
