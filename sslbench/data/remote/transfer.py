"""From a stream to a copy on disk: whole, unpacked where it is compressed, begun again when the connection breaks."""

import bz2
import contextlib
import gzip
import http.client
import importlib
import io
import logging
import lzma
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

from sslbench.data.remote import cache
from sslbench.data.wording import counted
from sslbench.errors import DataError

PAUSES_S = (1.0, 3.0, 9.0)
"""How long it is waited before a transfer that broke off is begun again; then it is given up."""

SLOWEST_S, SLOWEST_BYTES = 60.0, 60_000
"""A transfer that brings fewer bytes in as many seconds is begun again: a byte now and then meets no timeout."""

HEAD_BYTES = 6
_CHUNK = 1 << 20
_log = logging.getLogger("sslbench")


class _BrokenOffError(Exception):
    """The other side stopped sending."""


def copy(
    name: str,
    open_: Callable[[], Any],
    path: Path,
    *,
    size: int | None,
    mtime_ns: int,
    unpack: bool,
    pauses: tuple[float, ...] | None = None,
) -> int:
    """Writes what a stream gives to `path`, whole or not at all; returns its bytes there.

    Args:
        name: of what is read, for messages.
        open_: begins to read.
        path: of the copy, in a folder that exists.
        size: of what is read, if that is known.
        mtime_ns: the time that the copy is given.
        unpack: whether to unpack gzip, bzip2, xz and zstd, told by the first bytes.
        pauses: between attempts; as `PAUSES_S` unless given.

    Raises:
        DataError: it breaks off again and again, is damaged, does not fit, or needs the package zstandard.
    """
    waits = PAUSES_S if pauses is None else pauses
    for pause in (*waits, None):
        try:
            return _once(name, open_, path, size, mtime_ns, unpack)
        except _BrokenOffError as error:
            if pause is None:
                tried = f" (tried {counted(len(waits) + 1, 'time')})" if waits else ""
                problem = f"{name} cannot be read: {error}{tried}"
                raise DataError(problem, "Try again when it can be reached.") from error
            _log.warning("%s: %s; trying again in %g s", name, error, pause)
            time.sleep(pause)
    raise AssertionError


def compression(head: bytes) -> str | None:
    """How a file is compressed that begins like this: gzip, bzip2, xz, zstd, or None."""
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)


_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


def _once(name: str, open_: Callable[[], Any], path: Path, size: int | None, mtime_ns: int, unpack: bool) -> int:
    with contextlib.ExitStack() as stack:
        try:
            stream = stack.enter_context(open_())
        except (OSError, http.client.HTTPException) as error:
            raise _BrokenOffError(one_line(error)) from error
        raw = _Raw(stream)
        head = raw.start()
        kind = compression(head) if unpack else None
        source = _unpacker(kind, raw, name)
        written = 0
        with cache.writing(path, name, size if kind is None else None, mtime_ns) as part:
            while chunk := _read(source, raw, name, size):
                part.write(chunk)
                written += len(chunk)
            if size is not None and raw.count < size:
                raise _BrokenOffError(f"it broke off after {raw.count:,} of {size:,} bytes")
        return written


def _read(source: IO[bytes], raw: "_Raw", name: str, size: int | None) -> bytes:
    try:
        return source.read(_CHUNK)
    except (EOFError, OSError, zlib.error, lzma.LZMAError, ValueError, _zstd_error()) as error:
        if raw.ended and size is not None and raw.count < size:
            raise _BrokenOffError(f"it broke off after {raw.count:,} of {size:,} bytes") from error
        raise DataError(
            f"{name} is damaged or truncated: {one_line(error)}", "Get it again, or make it again."
        ) from error


class _Raw(io.RawIOBase):
    """A stream of bytes that counts them, gives its first ones twice, and tells its own errors from others."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._head, self.count, self.ended = b"", 0, False
        self._read = getattr(stream, "read1", stream.read)  # gives what is there, and waits for no more
        self._since, self._before = time.monotonic(), 0

    def start(self) -> bytes:
        """The first bytes, which are read again afterwards."""
        while len(self._head) < HEAD_BYTES and (more := self._next(HEAD_BYTES - len(self._head))):
            self._head += more
        return self._head

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        chunk, self._head = self._head, b""
        chunk = chunk or self._next(len(buffer))
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def _next(self, size: int) -> bytes:
        try:
            chunk = self._read(size)
        except (OSError, http.client.HTTPException, EOFError) as error:
            raise _BrokenOffError(one_line(error)) from error
        self.count += len(chunk)
        self.ended = self.ended or not chunk
        now = time.monotonic()
        if now - self._since > SLOWEST_S:
            if self.count - self._before < SLOWEST_BYTES and not self.ended:
                raise _BrokenOffError(f"it sent {self.count - self._before:,} bytes in {now - self._since:.0f} s")
            self._since, self._before = now, self.count
        return chunk


def _unpacker(kind: str | None, raw: _Raw, name: str) -> IO[bytes]:
    buffered = io.BufferedReader(raw, _CHUNK)
    if kind == "gzip":
        return cast(IO[bytes], gzip.GzipFile(fileobj=buffered))
    if kind == "bzip2":
        return bz2.BZ2File(buffered)
    if kind == "xz":
        return lzma.LZMAFile(buffered)
    if kind == "zstd":
        try:
            zstandard: Any = importlib.import_module("zstandard")
        except ImportError as error:
            raise DataError(
                f"unpacking {name} needs the package zstandard", "pip install zstandard; or unpack it: zstd -d"
            ) from error
        reader: IO[bytes] = zstandard.ZstdDecompressor().stream_reader(buffered, read_across_frames=True)
        return reader
    return buffered


def _zstd_error() -> type[Exception]:
    """What zstandard raises, which is no error of Python's own."""
    module = sys.modules.get("zstandard")
    return EOFError if module is None else module.ZstdError


def one_line(error: object) -> str:
    """An error as part of a message."""
    return " ".join(str(error).split())[:200] or type(error).__name__
