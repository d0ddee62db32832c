"""Hashes of images inside containers, remembered while the container stays as it is."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from sslbench.data.hashes import HashMemo, Stamp
from sslbench.data.images import DIGEST_BYTES, UNREADABLE_DIGEST, digest

_CHUNK = 1024


def remembered(
    order: npt.NDArray[np.int64],
    key: Callable[[int], str],
    stamp: Callable[[int], Stamp],
    read: Callable[[int], bytes],
    *,
    threads: int = 1,
    keep: Callable[[int], bool] = lambda _: True,
) -> npt.NDArray[np.uint8]:
    """The digests of N images: (N, 16) bytes, zeros for one that cannot be read.

    Args:
        order: int64 (N,), all positions, in an order in which they are read quickly.
        key: where an image lies, for the memo.
        stamp: of the container of an image.
        read: an image's content; OSError if it cannot be read.
        threads: how many images are read at once.
        keep: whether the stamp tells a change of an image's content, so that its digest can be remembered.
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
