"""Data behind a URL: copied to a bounded local cache by fsspec, and used from there.

The cache is the folder `remote` in the cache folder. It holds $SSLBENCH_REMOTE_CACHE at most (50GB unless set): what
was used longest ago goes first, never what a running process uses. With 0 a copy is removed when the last process that
uses it ends.
"""

import atexit
import contextlib
import functools
import hashlib
import json
import logging
import os
import re
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from sslbench import paths
from sslbench.data.wording import counted
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean

DEFAULT_LIMIT = "50GB"
_URL = re.compile(r"[A-Za-z][\w+.-]*://.+", re.DOTALL)
_CHUNK = 1 << 20
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_TIMEOUT_S = 60
_log = logging.getLogger("sslbench")


def is_url(spec: str) -> bool:
    """Whether the string is s3://..., https://... and the like."""
    return _URL.fullmatch(spec) is not None


def local_copies(urls: list[str]) -> list[Path]:
    """The files behind URLs as local ones, copied if they are not there or have changed.

    Args:
        urls: of files; all of them must fit into the cache at once.

    Returns:
        One path per URL, with the same file name; files of one remote folder lie in one folder.

    Raises:
        UsageError: the kind of URL is unknown or its package is missing, or there is no such file.
        DataError: it cannot be reached, breaks off, or does not fit into the cache.
    """
    files = [_Remote.of(url) for url in urls]
    total, limit = sum(file.size or 0 for file in files), _limit()
    if limit and total > limit:
        raise DataError(
            f"{counted(len(urls), 'file')} of {total:,} bytes do not fit into the cache of {limit:,}",
            "Raise $SSLBENCH_REMOTE_CACHE (such as 200GB), or copy the data to a folder.",
        )
    found = []
    for file in files:
        path = _place(file.url)
        with _locked(path):
            _use(path)
            if not _is_there(path, file):
                _copy(file, path)
        os.utime(path.with_name(path.name + ".info"))
        found.append(path)
    if limit:
        _evict(limit)
    return found


class _Remote:
    """A file behind a URL: its size, what changes when it does, and how to read it; all None when it is unreachable."""

    def __init__(self, url: str, size: int | None, state: str | None, open_: Callable[[], Any]) -> None:
        self.url, self.size, self.state, self.open = url, size, state, open_

    @classmethod
    def of(cls, url: str) -> "_Remote":
        kept = _place(url).with_name(_place(url).name + ".info")
        try:
            return _over_http(url) if url.startswith(("http://", "https://")) else _by_fsspec(url)
        except FileNotFoundError as error:
            raise UsageError(f"there is no file {url}") from error
        except (OSError, RuntimeError) as error:
            if kept.is_file():
                _log.warning("%s cannot be reached (%s): the copy that was made before is used", url, error)
                return cls(url, None, None, lambda: None)
            raise DataError(f"{url} cannot be reached: {_one_line(error)}") from error


def _over_http(url: str) -> _Remote:
    request = urllib.request.Request(url, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            size = answer.headers.get("Content-Length")
            state = [answer.headers.get(key) for key in ("ETag", "Last-Modified", "Content-Length")]
    except urllib.error.HTTPError as error:
        if error.code in (404, 410):
            raise FileNotFoundError(url) from error
        raise
    opened = functools.partial(urllib.request.urlopen, url, timeout=_TIMEOUT_S)
    return _Remote(url, int(size) if size is not None else None, json.dumps(state), opened)


def _by_fsspec(url: str) -> _Remote:
    import fsspec

    scheme = url.partition("://")[0]
    known = sorted(fsspec.available_protocols())
    if scheme not in known:
        raise UsageError(f"'{scheme}://' is no kind of URL that is known", did_you_mean(scheme, known))
    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        package = _PACKAGES.get(scheme, str(getattr(error, "name", None) or f"fsspec[{scheme}]"))
        raise UsageError(f"reading {scheme}:// needs the package {package}", f"pip install {package}") from error
    info = system.info(path)
    if info.get("type") == "directory":
        raise UsageError(f"{url} is a folder", "Give files: .tar, .zip, .tsv; braces stand for several: {0000..0099}.")
    keys = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "updated", "created", "size")
    state = json.dumps([str(info.get(key)) for key in keys])
    return _Remote(url, info.get("size"), state, functools.partial(system.open, path, "rb"))


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:200]


def _place(url: str) -> Path:
    """Where a copy lies: files of one remote folder together, under their own names."""
    parts = urllib.parse.urlsplit(url)
    folder, _, name = parts.path.rpartition("/") if parts.path.strip("/") else ("", "", parts.netloc)
    key = f"{parts.scheme}://{parts.netloc}{folder}?{parts.query}"
    name = urllib.parse.unquote(name).replace("/", "_")
    if not name or name in (".", ".."):
        raise UsageError(f"{url} names no file")
    return paths.cache_dir() / "remote" / hashlib.sha256(key.encode()).hexdigest()[:16] / name


def _is_there(path: Path, file: _Remote) -> bool:
    info = path.with_name(path.name + ".info")
    if not path.is_file() or not info.is_file():
        return False
    if file.state is None:
        return True
    known = json.loads(info.read_text(encoding="utf-8"))
    return bool(known["state"] == file.state and known["size"] == path.stat().st_size)


def _copy(file: _Remote, path: Path) -> None:
    """Whole or not at all."""
    if file.state is None:
        raise DataError(f"{file.url} cannot be reached, and its copy is incomplete")
    size = f" ({file.size:,} bytes)" if file.size is not None else ""
    _log.info("copying %s%s to %s", file.url, size, path)
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as new:
            try:
                with file.open() as source:
                    while chunk := source.read(_CHUNK):
                        new.write(chunk)
                copied = new.tell()
                if file.size is not None and copied != file.size:
                    raise OSError(f"it broke off after {copied:,} of {file.size:,} bytes")
            except BaseException:
                Path(new.name).unlink()
                raise
        Path(new.name).replace(path)
        about = {"url": file.url, "state": file.state, "size": copied}
        path.with_name(path.name + ".info").write_text(json.dumps(about), encoding="utf-8")
    except OSError as error:
        raise DataError(f"{file.url} cannot be copied to {path.parent}: {_one_line(error)}", "Try again.") from error


def _limit() -> int:
    text = os.environ.get("SSLBENCH_REMOTE_CACHE", DEFAULT_LIMIT)
    match = re.fullmatch(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[KMGT]?)B?", text.strip().upper())
    if match is None:
        raise UsageError(f"$SSLBENCH_REMOTE_CACHE is '{text}', which is no size", "Such as 50GB, 500MB, or 0.")
    return int(float(match["number"]) * _UNITS[match["unit"]])


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time copies to `path`."""
    import fcntl

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(f".{path.name}.copying").open("wb")
    except OSError as error:
        raise UsageError(
            f"the cache folder {path.parent} cannot be written: {error.strerror}",
            "Set $SSLBENCH_CACHE to a folder that can be written.",
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@functools.cache
def _use(path: Path) -> IO[bytes]:
    """A mark that this process, or one that it forks, uses a copy; the system takes it away when all have ended."""
    import fcntl

    mark = path.with_name(f".{path.name}.used").open("ab")
    fcntl.flock(mark, fcntl.LOCK_SH)
    atexit.register(_let_go, path, mark)
    return mark


def _let_go(path: Path, mark: IO[bytes]) -> None:
    mark.close()
    if _limit() == 0:
        _remove_unused(path)


def _remove_unused(path: Path) -> bool:
    """Removes a copy unless a process uses it; whether it did."""
    import fcntl

    with contextlib.suppress(OSError), path.with_name(f".{path.name}.used").open("ab") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in (path.name, f"{path.name}.info", f".{path.name}.copying", f".{path.name}.used"):
            path.with_name(name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            path.parent.rmdir()  # if it is empty now
        return True
    return False


def _evict(limit: int) -> None:
    """Removes what was used longest ago until the rest fits."""
    infos = sorted((paths.cache_dir() / "remote").glob("*/*.info"), key=lambda info: info.stat().st_mtime)
    copies = [info.with_name(info.name.removesuffix(".info")) for info in infos]
    sizes = {copy: copy.stat().st_size for copy in copies if copy.is_file()}
    total = sum(sizes.values())
    for copy, size in sizes.items():
        if total <= limit:
            return
        if _remove_unused(copy):
            total -= size
            _log.info("removed %s from the cache, which is full", copy)
