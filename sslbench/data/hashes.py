"""Cache of file digests in one sqlite database of the cache folder, so that no unchanged file is read twice."""

import os
import sqlite3
from collections.abc import Sequence
from types import TracebackType

from sslbench import paths
from sslbench.data.wording import warn_once

Stamp = tuple[int, int, int, int]
"""Size in bytes, modification and change time in ns, inode; it changes with the content."""

_SCHEMA = """CREATE TABLE IF NOT EXISTS hashes (
    path BLOB PRIMARY KEY, size INTEGER, mtime_ns INTEGER, ctime_ns INTEGER, inode TEXT, digest BLOB
) WITHOUT ROWID"""
_FIND = "SELECT path, size, mtime_ns, ctime_ns, inode, digest FROM hashes WHERE path IN (%s)"
# Before version 3.32, sqlite allows 999 variables in a statement.
_VARIABLES = 500


def stamp_of(stat: os.stat_result) -> Stamp:
    """Return the stamp of a file."""
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


def check_unchanged(path: str, stat: os.stat_result, stamp: Stamp) -> None:
    """Raise if a container of images has changed since it was opened."""
    if (stat.st_size, stat.st_mtime_ns) != stamp[:2]:
        raise OSError(f"{path} has changed since it was opened")


class HashMemo:
    """Digests by absolute path, valid while the file's stamp is unchanged; a context manager.

    Any number of processes may use it at once. A failure to read or write it costs time and one warning only.
    """

    def __enter__(self) -> "HashMemo":
        self._database: sqlite3.Connection | None = None
        self._file = paths.cache_dir() / "file-hashes.sqlite"
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            # Each write is a short transaction of its own; waiting is for many processes that start together.
            self._database = sqlite3.connect(self._file, timeout=20, isolation_level=None)
            self._database.execute(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            self._give_up(error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._database is not None:
            self._database.close()

    def lookup(self, files: Sequence[str], stamps: Sequence[Stamp | None]) -> list[bytes | None]:
        """Return the digest of each file; None where it is unknown or the file has changed since."""
        found: dict[bytes, tuple[Stamp, bytes]] = {}
        for start in range(0, len(files), _VARIABLES):
            if self._database is None:
                break
            keys = [os.fsencode(file) for file in files[start : start + _VARIABLES]]
            try:
                rows = self._database.execute(_FIND % ",".join("?" * len(keys)), keys).fetchall()
            except sqlite3.Error as error:
                self._give_up(error)
                break
            for path, size, mtime, ctime, inode, digest in rows:
                found[path] = ((size, mtime, ctime, int(inode)), digest)
        digests: list[bytes | None] = []
        for file, stamp in zip(files, stamps, strict=True):
            known = found.get(os.fsencode(file))
            digests.append(known[1] if known is not None and known[0] == stamp else None)
        return digests

    def remember(self, entries: Sequence[tuple[str, Stamp, bytes]], stamped_ns: int) -> None:
        """Store digests of files, except of those just written: they may change again within one clock tick."""
        rows = [
            # Inodes are unsigned 64-bit numbers and sqlite's are signed, hence text.
            (os.fsencode(file), stamp[0], stamp[1], stamp[2], str(stamp[3]), digest)
            for file, stamp, digest in entries
            if settled(stamp, stamped_ns)
        ]
        if not rows or self._database is None:
            return
        try:
            # The write lock at once, for which `timeout` waits; to upgrade a read lock may fail without waiting.
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany("INSERT OR REPLACE INTO hashes VALUES (?, ?, ?, ?, ?, ?)", rows)
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        if self._database is not None:
            self._database.close()
        self._database = None
        warn_once(
            f"the cache of file digests {self._file} cannot be used ({error}): every image is read again to hash it. "
            "Delete the file, or set SSLBENCH_CACHE to a folder you may write to."
        )


def settled(stamp: Stamp, now_ns: int) -> bool:
    """Return whether a file is old enough that any further change alters its stamp."""
    # File times tick every 1 to 10 ms, or every 1 to 2 s where the file system keeps whole seconds.
    newest = max(stamp[1], stamp[2])
    coarse = stamp[1] % 1_000_000_000 == 0 and stamp[2] % 1_000_000_000 == 0
    return now_ns - newest > (2_500_000_000 if coarse else 50_000_000)
