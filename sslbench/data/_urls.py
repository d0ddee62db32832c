"""What lies behind a URL: http and https by the standard library, all else by fsspec."""

import dataclasses
import functools
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from sslbench.errors import UsageError
from sslbench.names import did_you_mean

_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
_TIMEOUT_S = 60


@dataclasses.dataclass(frozen=True)
class RemoteFile:
    """A file behind a URL.

    Attributes:
        url: of it.
        size: its bytes; None if the server does not say.
        state: what changes when the file does.
        open: begins to read it.
    """

    url: str
    size: int | None
    state: str
    open: Callable[[], Any]


def described(url: str) -> RemoteFile:
    """The file as its server describes it; nothing of it is read.

    Raises:
        UsageError: the kind of URL is unknown, its package is missing, or it is a folder.
        FileNotFoundError: there is no such file.
        OSError: it cannot be reached; some packages of fsspec raise a RuntimeError instead.
    """
    return _over_http(url) if url.startswith(("http://", "https://")) else _by_fsspec(url)


def _over_http(url: str) -> RemoteFile:
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
    return RemoteFile(url, int(size) if size is not None else None, json.dumps(state), opened)


def _by_fsspec(url: str) -> RemoteFile:
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
    return RemoteFile(url, info.get("size"), state, functools.partial(system.open, path, "rb"))
