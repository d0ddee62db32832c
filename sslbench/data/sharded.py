"""Images that lie in shards: which one each is in, and orders of reading that keep to few shards at a time."""

import logging
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from sslbench.data.remote import cache
from sslbench.data.source import Images, Source
from sslbench.data.wording import counted
from sslbench.errors import UsageError

Indices = npt.NDArray[np.int64]

WINDOW = 4
"""Shards from which sampler=shards draws at a time, unless another number is given."""

_log = logging.getLogger("sslbench")


@runtime_checkable
class Sharded(Protocol):
    """What images may say beside `Images` when they lie in a few large files."""

    def shards(self) -> Indices:
        """int64 (N,): the number of the shard of each image."""
        ...

    def fetched(self) -> Indices:
        """int64 (shards,): bytes that are copied to this machine before a shard can be read; 0 if it is here."""
        ...


def shards_of(images: Images) -> Indices | None:
    """int64 (N,): the shard of each image; None if they are files of their own, or in memory."""
    return images.shards() if isinstance(images, Sharded) else None


def by_shard(images: Images, indices: Indices) -> Indices:
    """The same indices, those of one shard together, else in their order: each shard is read once."""
    shards = shards_of(images)
    return indices if shards is None else indices[np.argsort(shards[indices], kind="stable")]


def check_order(source: Source, sampler: str, window: int) -> None:
    """Whether shards that are fetched can be read in this order without fetching one of them again and again.

    Raises:
        UsageError: sampler=shards, and there are no shards, or those of a window do not fit into the cache.
    """
    if sampler == "shards" and window < 1:
        raise UsageError(f"shard_window={window} should be at least 1 shard")
    images = source.images
    if not isinstance(images, Sharded):
        if sampler == "shards":
            raise UsageError(
                f"sampler=shards needs images in shards (tar, TFDS), and those of {source.name} are not",
                "Leave sampler away: every image is shown once per epoch, in a random order.",
            )
        return
    sizes = np.sort(images.fetched()[np.unique(images.shards())])[::-1]
    if sizes.sum() <= (cache.limit() or 0):
        return
    needed = int(sizes[: window + 1].sum())  # the next one comes before the last image of the first is read
    if sampler == "shards" and needed > cache.bound():
        fitting = int((sizes.cumsum() <= cache.bound()).sum()) - 1
        smaller = f", or give shard_window={fitting}" if fitting >= 1 else ""
        raise UsageError(
            f"shard_window={window} needs {counted(min(window + 1, len(sizes)), 'shard')} of {source.name} at once: "
            f"{needed:,} bytes, and the cache holds {cache.bound():,}",
            f"Raise $SSLBENCH_REMOTE_CACHE to {needed:,}{smaller}.",
        )
    if sampler != "shards" and sizes.any():
        _log.warning(
            "%s: its %s of %s bytes do not stay in the cache together, and sampler=%s reads from all of them at any "
            "time, so that they are fetched again and again. Give sampler=shards, or raise $SSLBENCH_REMOTE_CACHE.",
            source.name,
            counted(len(sizes), "shard"),
            f"{int(sizes.sum()):,}",
            sampler,
        )
