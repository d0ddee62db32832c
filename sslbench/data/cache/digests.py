"""Digests of images inside containers, cached while the container is unchanged."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from sslbench.data.hashes import HashMemo, Stamp
from sslbench.data.images import DIGEST_BYTES, UNREADABLE_DIGEST, digest

_CHUNK = 1024


def cached_digests(
    order: npt.NDArray[np.int64],
    key: Callable[[int], str],
    stamp: Callable[[int], Stamp],
    read: Callable[[int], bytes],
    *,
    threads: int = 1,
    keep: Callable[[int], bool] = lambda _: True,
) -> npt.NDArray[np.uint8]:
    """Return the digests of N images: (N, 16) bytes, zeros for an unreadable one.

    Args:
        order: int64 (N,), all positions, in the order in which to read them.
        key: position -> place of the image, the key of the cache.
        stamp: position -> stamp of the image's container.
        read: position -> content of the image; raises OSError for an unreadable one.
        threads: number of images read at once.
        keep: position -> whether the stamp changes whenever the image does, so that its digest may be cached.
    """

    def hashed(index: int) -> bytes | None:
        try:
            return digest(read(index))
        except OSError:
            return None

    digests = np.zeros((len(order), DIGEST_BYTES), dtype=np.uint8)
    with HashMemo() as memo, ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(order), _CHUNK):
            chunk = order[start : start + _CHUNK].tolist()
            now = time.time_ns()
            keys, stamps = [key(i) for i in chunk], [stamp(i) for i in chunk]
            known = memo.lookup(keys, stamps)
            todo = [i for i, found in enumerate(known) if found is None]
            fresh = dict(zip(todo, pool.map(hashed, [chunk[i] for i in todo]), strict=True))
            memo.remember([(keys[i], stamps[i], found) for i, found in fresh.items() if found and keep(chunk[i])], now)
            content = b"".join(found or fresh.get(i) or UNREADABLE_DIGEST for i, found in enumerate(known))
            digests[chunk] = np.frombuffer(content, dtype=np.uint8).reshape(-1, DIGEST_BYTES)
    return digests
