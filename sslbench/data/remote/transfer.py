"""Transfer of a stream to a local copy: atomic, unpacked if compressed, retried when the connection breaks."""

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
from sslbench.errors import DataError, UnreachableError

PAUSES_S = (1.0, 3.0, 9.0)
"""Seconds before each retry of a broken transfer; after the last one it fails."""

SLOWEST_S, SLOWEST_BYTES = 60.0, 60_000
"""Minimum progress of a transfer, or it is retried: a socket's timeout does not notice a byte now and then."""

PROGRESS_S = 10.0
"""Seconds between two lines about the progress of a transfer."""

HEAD_BYTES = 6
_CHUNK = 1 << 20
_log = logging.getLogger("sslbench")


class _TransferError(Exception):
    """Connection closed before the end of the file."""


def copy(
    name: str,
    open_stream: Callable[[], Any],
    path: Path,
    *,
    size: int | None,
    mtime_ns: int,
    unpack: bool,
    check: Callable[[], None] = lambda: None,
    pauses: tuple[float, ...] | None = None,
) -> int:
    """Copy a stream to `path`, atomically, and return the number of bytes written.

    Args:
        name: name of the file in messages.
        open_stream: opens the stream.
        path: of the copy, in an existing folder.
        size: of the stream in bytes, if known.
        mtime_ns: modification time to set.
        unpack: unpack gzip, bzip2, xz and zstd, recognised by their first bytes.
        check: called before the copy appears; an error discards it.
        pauses: seconds between attempts; `PAUSES_S` by default.

    Raises:
        DataError: all attempts fail, or the file is damaged, does not fit, or needs the package zstandard.
    """
    waits = PAUSES_S if pauses is None else pauses
    for pause in (*waits, None):
        try:
            return _attempt(name, open_stream, path, size, mtime_ns, unpack, check)
        except _TransferError as error:
            if pause is None:
                tried = f" (tried {counted(len(waits) + 1, 'time')})" if waits else ""
                problem = f"{name} cannot be read: {error}{tried}"
                raise UnreachableError(problem, "Try again when it can be reached.") from error
            _log.warning("%s: %s; trying again in %g s", name, error, pause)
            time.sleep(pause)
    raise AssertionError


def compression(head: bytes) -> str | None:
    """Return the compression of a file that begins with these bytes: gzip, bzip2, xz, zstd or None."""
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)


_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


def _attempt(
    name: str,
    open_stream: Callable[[], Any],
    path: Path,
    size: int | None,
    mtime_ns: int,
    unpack: bool,
    check: Callable[[], None],
) -> int:
    with contextlib.ExitStack() as stack:
        try:
            stream = stack.enter_context(open_stream())
        except (OSError, http.client.HTTPException) as error:
            raise _TransferError(one_line(error)) from error
        raw = _Raw(stream)
        head = raw.start()
        kind = compression(head) if unpack else None
        source = _unpacker(kind, raw, name)
        written = 0
        with cache.writing(path, name, size if kind is None else None, mtime_ns) as part:
            told = time.monotonic()
            while chunk := _read(source, raw, name, size):
                part.write(chunk)
                written += len(chunk)
                if time.monotonic() - told > PROGRESS_S:
                    told = time.monotonic()
                    _log.info("%s: %s of %s MB", name, f"{raw.count / 1e6:,.0f}", f"{size / 1e6:,.0f}" if size else "?")
            if size is not None and raw.count < size:
                raise _TransferError(f"the transfer ended after {raw.count:,} of {size:,} bytes")
            check()
        return written


def _read(source: IO[bytes], raw: "_Raw", name: str, size: int | None) -> bytes:
    try:
        return source.read(_CHUNK)
    except (EOFError, OSError, zlib.error, lzma.LZMAError, ValueError, _zstd_error()) as error:
        if raw.ended and size is not None and raw.count < size:
            raise _TransferError(f"the transfer ended after {raw.count:,} of {size:,} bytes") from error
        raise DataError(
            f"{name} is damaged or truncated: {one_line(error)}", "Download or create the file again."
        ) from error


class _Raw(io.RawIOBase):
    """Stream that counts its bytes, repeats the first ones, and marks its own errors as transfer errors."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._head, self.count, self.ended = b"", 0, False
        self._read = getattr(stream, "read1", stream.read)  # returns the available bytes without waiting for more
        self._since, self._before = time.monotonic(), 0

    def start(self) -> bytes:
        """Return the first bytes without consuming them."""
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
            raise _TransferError(one_line(error)) from error
        self.count += len(chunk)
        self.ended = self.ended or not chunk
        now = time.monotonic()
        if now - self._since > SLOWEST_S:
            if self.count - self._before < SLOWEST_BYTES and not self.ended:
                raise _TransferError(f"it sent {self.count - self._before:,} bytes in {now - self._since:.0f} s")
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
    """Return the exception class of zstandard; EOFError while the package is not loaded."""
    module = sys.modules.get("zstandard")
    return EOFError if module is None else module.ZstdError


def one_line(error: object) -> str:
    """Return the text of an error in one line of at most 200 characters."""
    return " ".join(str(error).split())[:200] or type(error).__name__
