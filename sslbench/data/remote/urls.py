"""What lies behind a URL: http and https by the standard library, all else by fsspec."""

import dataclasses
import functools
import http.client
import json
import queue
import re
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from email.message import Message
from typing import Any, TypeVar

from sslbench.errors import UsageError
from sslbench.names import did_you_mean

_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
_TIMEOUT_S = 60
"""Seconds without any byte."""

_ANSWER_S = 120
"""Seconds for a whole answer about a file."""

_HEAD_REFUSED = (400, 401, 403, 405, 501)
T = TypeVar("T")


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
    if re.search(r"[\s\x00-\x1f]|%00", url):
        raise UsageError(f"{url!r} is no URL: it has a space or a control character", "Write a space as %20.")
    try:
        urllib.parse.urlsplit(url).port  # noqa: B018 - raises for what is no address
    except ValueError as error:
        raise UsageError(f"{url} is no URL: {error}") from error
    return _over_http(url) if url.startswith(("http://", "https://")) else _by_fsspec(url)


def _over_http(url: str) -> RemoteFile:
    """Ask with HEAD; by the first byte with GET where HEAD is refused, as it is for URLs that are signed for GET."""
    try:
        head = _within(_ANSWER_S, lambda: _headers(urllib.request.Request(url, method="HEAD")))
    except urllib.error.HTTPError as error:
        if error.code not in _HEAD_REFUSED:
            raise
        head = _within(_ANSWER_S, lambda: _headers(urllib.request.Request(url, headers={"Range": "bytes=0-0"})))
    length = head.get("Content-Length")
    if (whole := re.fullmatch(r"bytes \d+-\d+/(\d+)", head.get("Content-Range") or "")) is not None:
        length = whole[1]
    if length is not None and not re.fullmatch(r"\d{1,18}", length):
        raise OSError(f"its server says that it has '{length[:40]}' bytes")
    state = [head.get("ETag"), head.get("Last-Modified"), length]
    opened = functools.partial(urllib.request.urlopen, url, timeout=_TIMEOUT_S)
    return RemoteFile(url, None if length is None else int(length), json.dumps(state), opened)


def _headers(request: urllib.request.Request) -> Message:
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            headers: Message = answer.headers
            return headers
    except urllib.error.HTTPError as error:
        if error.code in (404, 410):
            raise FileNotFoundError(request.full_url) from error
        raise
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def _within(seconds: float, ask: Callable[[], T]) -> T:
    """Call a function that may wait for ever: a server that sends a byte now and then meets no timeout of a socket.

    Raises:
        TimeoutError: no answer in that time; the function goes on in a thread that does not keep the process alive.
    """
    answers: queue.Queue[T | BaseException] = queue.Queue()

    def work() -> None:
        try:
            answers.put(ask())
        except BaseException as error:  # noqa: BLE001 - raised by who waits
            answers.put(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if isinstance(answer, BaseException):
        raise answer
    return answer


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
