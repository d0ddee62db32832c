"""Cached index of the entries of a large container; rebuilt when the container changes."""

import dataclasses
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from sslbench import paths
from sslbench.arrays import OfRows
from sslbench.data import remote
from sslbench.data.hashes import HashMemo, Stamp, stamp_of
from sslbench.data.images import DIGEST_BYTES, UNREADABLE_DIGEST, digest
from sslbench.data.wording import warn_once
from sslbench.errors import DataError

SETTLED_NS = 3_000_000_000
"""Minimum age of a file whose index is cached: file systems may store times as whole seconds."""

_MAGIC = b"sslbench index 1\n"
_DIGEST_BYTES = 32
_LARGE = 1 << 30
_CHUNK = 1024
T = TypeVar("T")
_log = logging.getLogger("sslbench")


@dataclasses.dataclass(frozen=True, eq=False)
class Index:
    """The entries of one container.

    Attributes:
        names: of the N entries.
        numbers: int64 (N, K), place of each entry, in the columns of its kind of container.
        texts: one per entry, such as its label as written in the file; '' without one.
        notes: surprising findings, one sentence each.
    """

    names: tuple[str, ...]
    numbers: npt.NDArray[np.int64]
    texts: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.names) == len(self.numbers) == len(self.texts):
            raise ValueError(f"{len(self.names)} names, {len(self.numbers)} places, {len(self.texts)} texts")


def container_stamp(path: Path) -> Stamp:
    """Return the stamp of a container."""
    try:
        return stamp_of(path.stat())
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def indexed(
    path: Path, kind: str, build: Callable[[Path], Index], origin: remote.Origin | None = None
) -> tuple[Index, Stamp]:
    """Return the index of a container and the stamp for which it is valid.

    `kind`: kind of container and version of its index, a part of the cache key. `build`: reads the container; called
    when no valid index is cached. `origin`: of a remote or compressed container, whose copy is fetched if it is
    missing.
    """
    stamp = container_stamp(path) if origin is None else origin.stamp
    name = f"{kind}\0{os.path.abspath(path) if origin is None else origin.name}"  # noqa: PTH100 - links stay as they are
    file = paths.cache_dir() / "indexes" / f"{hashlib.sha256(os.fsencode(name)).hexdigest()[:32]}.idx"
    known = _load(file, [name, *map(str, stamp)])
    if known is not None:
        return known, stamp
    if origin is not None:
        return _indexed_copy(file, [name, *map(str, stamp)], build, origin), stamp
    if stamp[0] > _LARGE:
        _log.info("indexing %s (once)", path)
    try:
        index = build(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    if container_stamp(path) != stamp:
        raise DataError(f"{path} was written to while it was read", "Try again when it is complete.")
    if time.time_ns() - max(stamp[1], stamp[2]) > SETTLED_NS:
        _save(file, [name, *map(str, stamp)], index)
    return index, stamp


def _indexed_copy(file: Path, valid_for: list[str], build: Callable[[Path], Index], origin: remote.Origin) -> Index:
    """Return the index of a fetched copy; one process builds it for all."""
    with remote.exclusive(file):
        # Another process may have built it while this one waited for the lock.
        known = _load(file, valid_for)
        if known is not None:
            return known
        with remote.opened(origin):  # keeps the copy in the cache
            try:
                index = build(Path(origin.place))
            except OSError as error:
                raise DataError(f"cannot read the copy of {origin.url}: {error.strerror or error}") from error
        _save(file, valid_for, index)
        return index


def _load(file: Path, valid_for: list[str]) -> Index | None:
    """Return the cached index; None if it is missing, outdated or damaged."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    body = content[len(_MAGIC) + _DIGEST_BYTES :]
    if content[: len(_MAGIC)] != _MAGIC or content[len(_MAGIC) : len(_MAGIC) + _DIGEST_BYTES] != _digest(body):
        _log.warning("%s is damaged; it is rebuilt", file)
        return None
    # From here on the content is what _save wrote.
    header, _, numbers = body.partition(b"\n")
    known = json.loads(header)
    if known["valid_for"] != valid_for:
        return None
    places = np.frombuffer(numbers, dtype="<i8").astype(np.int64).reshape(known["shape"])
    return Index(tuple(known["names"]), places, tuple(known["texts"]), tuple(known["notes"]))


def _save(file: Path, valid_for: list[str], index: Index) -> None:
    known = {
        "valid_for": valid_for,
        "shape": index.numbers.shape,
        "names": index.names,
        "texts": index.texts,
        "notes": index.notes,
    }
    body = json.dumps(known).encode() + b"\n" + index.numbers.astype("<i8").tobytes()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with paths.temporary_beside(file) as new:  # whole or not at all, also when several processes write the same
            new.write_bytes(_MAGIC + _digest(body) + body)
            new.replace(file)
    except OSError as error:
        warn_once(
            f"the index of a container cannot be cached in {file.parent} ({error.strerror}): it is rebuilt every time"
        )


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()


class OpenFiles:
    """Files that this process has open; every process opens its own, and pickling carries none to another one."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, str], Any] = {}

    def __reduce__(self) -> tuple[type["OpenFiles"], tuple[()]]:
        return OpenFiles, ()

    def get(self, path: str, most: int, open_file: Callable[[str], T]) -> T:
        """Return the open file of a path; of `most` others the one that was opened first is dropped."""
        # After a fork both processes would move the position of one open file.
        key = (os.getpid(), path)
        found: T | None = self._open.get(key)
        if found is None:
            while len(self._open) >= most:
                # Threads read at once, so another one may have removed it; one that still reads keeps the file open.
                self._open.pop(next(iter(self._open)), None)
            found = self._open[key] = open_file(path)
        return found


class InContainers(OfRows):
    """Dataclass of N encoded images in a few large files; see `OfRows`.

    Attributes:
        containers: the files.
        stamps: their state when they were indexed; reading from one that has changed since is an error.
        places: int64 (N, K), the container of each image, and its place there.
    """

    of_rows: ClassVar[tuple[str, ...]] = ("places",)
    threads: ClassVar[int] = 1
    """Number of images that are read at once for their digests."""
    containers: tuple[str, ...]
    stamps: tuple[Stamp, ...]
    places: npt.NDArray[np.int64]

    def read(self, index: int) -> bytes:
        """Return an encoded image; raises OSError for an unreadable one."""
        raise NotImplementedError

    def place_key(self, index: int) -> str:
        """Return a text that tells an image from others in its container, for the cache of digests."""
        raise NotImplementedError

    def changes_with_stamp(self, index: int) -> bool:
        """Return whether the stamp of the container changes whenever the image does, so that its digest is cached."""
        return True

    def shards(self) -> npt.NDArray[np.int64]:
        """Return the number of each image's container: int64 (N,)."""
        return self.places[:, 0]

    def fetched(self) -> npt.NDArray[np.int64]:
        """Return the bytes to fetch before each container can be read: int64 (containers,), 0 for a local file."""
        return np.zeros(len(self.containers), dtype=np.int64)

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return the BLAKE2b digest of each unpacked image, (N, 16) bytes, zeros for an unreadable one.

        Equal to the digest of the image as a single file. Cached while the container is unchanged.
        """

        def hashed(index: int) -> bytes | None:
            try:
                return digest(self.read(index))
            except OSError:
                return None

        order = np.lexsort((self.places[:, 1], self.places[:, 0]))  # one pass through each container
        digests = np.zeros((len(order), DIGEST_BYTES), dtype=np.uint8)
        with HashMemo() as memo, ThreadPoolExecutor(self.threads) as pool:
            for start in range(0, len(order), _CHUNK):
                chunk = order[start : start + _CHUNK].tolist()
                # Before the images are read: digests are kept only where the stamp was settled by then.
                now = time.time_ns()
                files = self.places[chunk, 0].tolist()
                paths = [os.path.abspath(self.containers[file]) for file in files]  # noqa: PTH100
                keys = [f"{path}\0{self.place_key(i)}" for path, i in zip(paths, chunk, strict=True)]
                stamps = [self.stamps[file] for file in files]
                known = memo.lookup(keys, stamps)
                todo = [i for i, found in enumerate(known) if found is None]
                fresh = dict(zip(todo, pool.map(hashed, [chunk[i] for i in todo]), strict=True))
                kept = [i for i, found in fresh.items() if found and self.changes_with_stamp(chunk[i])]
                memo.remember([(keys[i], stamps[i], fresh[i] or b"") for i in kept], now)
                content = b"".join(found or fresh.get(i) or UNREADABLE_DIGEST for i, found in enumerate(known))
                digests[chunk] = np.frombuffer(content, dtype=np.uint8).reshape(-1, DIGEST_BYTES)
        return digests
