"""Where the entries of a large container lie: found once, kept in the cache folder, and found anew when it changed."""

import dataclasses
import functools
import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sslbench import paths
from sslbench.data import remote
from sslbench.data.hashes import Stamp
from sslbench.errors import DataError

SETTLED_NS = 3_000_000_000
"""An index is kept of files that have not changed for so long: file systems may keep times as whole seconds."""

_MAGIC = b"sslbench index 1\n"
_DIGEST_BYTES = 32
_LARGE = 1 << 30
_log = logging.getLogger("sslbench")


@dataclasses.dataclass(frozen=True, eq=False)
class Index:
    """The entries of one container.

    Attributes:
        names: of the N entries.
        numbers: int64 (N, K), what the kind of container needs to find an entry again.
        texts: of the N entries, such as their labels as they stand in the file; empty where there is none.
        notes: what was found on the way and may surprise.
    """

    names: tuple[str, ...]
    numbers: npt.NDArray[np.int64]
    texts: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.names) == len(self.numbers) == len(self.texts):
            raise ValueError(f"{len(self.names)} names, {len(self.numbers)} places, {len(self.texts)} texts")


def stamp_of(path: Path) -> Stamp:
    """What changes when the file does.

    Raises:
        DataError: the file cannot be reached.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


def indexed(
    path: Path, kind: str, build: Callable[[Path], Index], origin: remote.Origin | None = None
) -> tuple[Index, Stamp]:
    """The index of a container and the stamp for which it holds.

    Args:
        path: the container.
        kind: what is indexed and how; another text is another index.
        build: reads the container when its index is not there or no longer holds.
        origin: of a container whose copy is made for that, if it is not there.

    Raises:
        DataError: the container cannot be read, changes meanwhile, or whatever `build` finds wrong.
    """
    stamp = stamp_of(path) if origin is None else origin.stamp
    name = f"{kind}\0{os.path.abspath(path) if origin is None else origin.url}"  # noqa: PTH100 - links stay as they are
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
    if stamp_of(path) != stamp:
        raise DataError(f"{path} was written to while it was read", "Try again when it is complete.")
    if time.time_ns() - max(stamp[1], stamp[2]) > SETTLED_NS:
        _save(file, [name, *map(str, stamp)], index)
    return index, stamp


def _indexed_copy(file: Path, valid_for: list[str], build: Callable[[Path], Index], origin: remote.Origin) -> Index:
    """The index of a container that is copied for it, by one process for all."""
    with remote.alone(file):
        known = _load(file, valid_for)
        if known is not None:
            return known
        with remote.opened(origin):  # the copy stays meanwhile
            try:
                index = build(Path(origin.place))
            except OSError as error:
                raise DataError(f"cannot read the copy of {origin.url}: {error.strerror or error}") from error
        _save(file, valid_for, index)
        return index


def _load(file: Path, valid_for: list[str]) -> Index | None:
    """The kept index; None if there is none, it is of another state of the container, or it is damaged."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    body = content[len(_MAGIC) + _DIGEST_BYTES :]
    if content[: len(_MAGIC)] != _MAGIC or content[len(_MAGIC) : len(_MAGIC) + _DIGEST_BYTES] != _digest(body):
        _log.warning("%s is damaged; it is made again", file)
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
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as new:
            new.write(_MAGIC + _digest(body) + body)
        Path(new.name).replace(file)  # whole or not at all, also when several processes write the same
    except OSError as error:
        _warn_once(
            f"the index of a container cannot be kept in {file.parent} ({error.strerror}): it is made every time"
        )


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()


@functools.cache
def _warn_once(message: str) -> None:
    _log.warning(message)
