"""Images in shards: the shard of each image, and orders of reading that use few shards at a time."""

import logging
from typing import Protocol, runtime_checkable

import numpy as np

from sslbench.arrays import IntArray
from sslbench.data import remote
from sslbench.data.source import Source
from sslbench.data.wording import counted
from sslbench.errors import UsageError
from sslbench.targets.target import Images

WINDOW = 4
"""Default number of shards that sampler=shards mixes."""

# Smallest number of shards of which a process gets whole ones, so that its share is at most a third too large
_SHARDS_EACH = 3

_log = logging.getLogger("sslbench")


@runtime_checkable
class Sharded(Protocol):
    """Additional interface of `Images` that are stored in a few large files."""

    def shards(self) -> IntArray:
        """Return the number of each image's shard: int64 (N,)."""
        ...

    def fetched(self) -> IntArray:
        """Return the bytes to fetch before each shard can be read: int64 (shards,), 0 for a local one."""
        ...


def shards_of(images: Images) -> IntArray | None:
    """Return the number of each image's shard, int64 (N,); None for images in single files or in memory."""
    return images.shards() if isinstance(images, Sharded) else None


def by_shard(images: Images, indices: IntArray) -> IntArray:
    """Return the indices sorted by shard, stably, so that each shard is read once."""
    shards = shards_of(images)
    return indices if shards is None else indices[np.argsort(shards[indices], kind="stable")]


def rows_of(images: Images, rank: int, world: int) -> IntArray:
    """Return the rows of one of `world` processes that share a pass over all images, int64, ascending.

    Neighbouring rows: processes on several machines that write rows of one file share few of its pages, which clients
    of NFS write as a whole. Of many shards to fetch, those of whole shards, so that one process fetches each. Otherwise
    a process that is ahead of another would evict from a small cache what the other needs again.
    """
    rows = np.arange(len(images))
    share = rows[len(rows) * rank // world : len(rows) * (rank + 1) // world]
    if world == 1 or not isinstance(images, Sharded) or not images.fetched().any():
        return share
    _, shard, sizes = np.unique(images.shards(), return_inverse=True, return_counts=True)
    if not len(rows) or sizes.max() * world * _SHARDS_EACH > len(rows):
        return share
    owner = (2 * sizes.cumsum() - sizes) * world // (2 * len(rows))  # by the middle of the shard
    return np.flatnonzero(owner[shard] == rank)


def check_order(source: Source, sampler: str, window: int) -> None:
    """Raise if the sampler's order needs more remote shards at once than the cache can hold.

    Other samplers than 'shards' only warn: they fetch the same shards again and again.
    """
    if sampler == "shards" and window < 1:
        raise UsageError(f"shard_window={window} should be at least 1 shard")
    images = source.images
    if not isinstance(images, Sharded):
        if sampler == "shards":
            raise UsageError(
                f"sampler=shards needs images in shards (tar, TFDS), which {source.name} does not have",
                "Leave out sampler= to draw every image once per epoch, in random order.",
            )
        return
    sizes = np.sort(images.fetched()[np.unique(images.shards())])[::-1]
    if sizes.sum() <= (remote.limit() or 0):
        return
    needed = int(sizes[: window + 1].sum())  # the next shard is fetched before the first is finished
    if sampler == "shards" and needed > remote.bound():
        fitting = int((sizes.cumsum() <= remote.bound()).sum()) - 1
        smaller = f", or give shard_window={fitting}" if fitting >= 1 else ""
        raise UsageError(
            f"shard_window={window} needs {counted(min(window + 1, len(sizes)), 'shard')} of {source.name} at once: "
            f"{needed:,} bytes, and the cache holds {remote.bound():,}",
            f"Raise $SSLBENCH_REMOTE_CACHE to {needed:,}{smaller}.",
        )
    if sampler != "shards" and sizes.any():
        _log.warning(
            "%s: its %s of %s bytes exceed the cache, and sampler=%s reads from all of them at random, "
            "so they are downloaded repeatedly. Give sampler=shards, or raise $SSLBENCH_REMOTE_CACHE.",
            source.name,
            counted(len(sizes), "shard"),
            f"{int(sizes.sum()):,}",
            sampler,
        )
