"""Remote files by URL: http and https through the standard library, other schemes through fsspec."""

import base64
import contextlib
import dataclasses
import functools
import http.client
import json
import queue
import re
import socket
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from email.message import Message
from typing import Any, TypeVar

from sslbench.errors import UnreachableError, UsageError
from sslbench.names import did_you_mean
from sslbench.text import without_secrets

_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
_TIMEOUT_S = 60
"""Timeout of a socket that receives nothing, in seconds."""

_ANSWER_S = 120
"""Timeout of a whole response with a file's headers, in seconds."""

_HEAD_REFUSED = (400, 401, 403, 405, 501)
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class RemoteFile:
    """A file behind a URL.

    Attributes:
        url: of the file.
        size: in bytes; None if the server does not say.
        state: text that changes with the file's content.
        open: opens the file for reading.
    """

    url: str
    size: int | None
    state: str
    open: Callable[[], Any]


def described(url: str) -> RemoteFile:
    """Return the size and state of a remote file, as its server gives them; the content is not read.

    Raises:
        UsageError: the URL scheme is unknown, its package is missing, or the URL is a folder.
        FileNotFoundError: the file does not exist.
        OSError: the server cannot be reached, or gives no access.
    """
    if re.search(r"[\s\x00-\x1f]|%00", url):
        raise UsageError(f"{url!r} is not a URL: it has a space or a control character", "Write a space as %20.")
    try:
        urllib.parse.urlsplit(url).port  # noqa: B018 - raises for an invalid port
    except ValueError as error:
        # The error would show a part of the address, which may be of a login.
        raise UsageError(f"{url} is not a URL: its host or port cannot be read") from error
    return _over_http(url) if url.startswith(("http://", "https://")) else _by_fsspec(url)


def refuse_unreachable(address: str, seconds: float = 10) -> None:
    """Refuse an http address whose server, or the proxy that the environment names, does not accept connections.

    Raises:
        DataError: no connection within the time.
    """
    parts = urllib.parse.urlsplit(address)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy and not urllib.request.proxy_bypass(parts.netloc):
        parts = urllib.parse.urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=seconds).close()
    except OSError as error:
        raise UnreachableError(f"{parts.hostname} cannot be reached ({error.strerror or error})") from error


def _over_http(url: str) -> RemoteFile:
    """Ask with HEAD; where that is refused, as for URLs signed for GET, with GET of the first byte."""
    try:
        head = _within(_ANSWER_S, lambda: _headers(_request(url, method="HEAD")))
    except urllib.error.HTTPError as error:
        if error.code not in _HEAD_REFUSED:
            raise
        head = _within(_ANSWER_S, lambda: _headers(_request(url, headers={"Range": "bytes=0-0"})))
    length = head.get("Content-Length")
    if (whole := re.fullmatch(r"bytes \d+-\d+/(\d+)", head.get("Content-Range") or "")) is not None:
        length = whole[1]
    if length is not None and not re.fullmatch(r"\d{1,18}", length):
        raise OSError(f"the server reports a length of '{length[:40]}' bytes")
    state = [head.get("ETag"), head.get("Last-Modified"), length]
    opened = functools.partial(urllib.request.urlopen, _request(url), timeout=_TIMEOUT_S)
    return RemoteFile(url, None if length is None else int(length), json.dumps(state), opened)


def _request(url: str, **given: Any) -> urllib.request.Request:
    """Return a request; a login in the URL goes to its server alone, not along with a redirection."""
    parts = urllib.parse.urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(parts._replace(netloc=host).geturl(), **given)
    if at:
        coded = base64.b64encode(urllib.parse.unquote(login).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {coded}")
    return request


def _headers(request: urllib.request.Request) -> Message:
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            headers: Message = answer.headers
            return headers
    except urllib.error.HTTPError as error:
        if error.code in (404, 410):
            raise FileNotFoundError(without_secrets(request.full_url)) from error
        raise
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def _within(seconds: float, ask: Callable[[], T]) -> T:
    """Call a function with a time limit: a server that sends a byte now and then never exceeds a socket's timeout."""
    answers: queue.Queue[T | BaseException] = queue.Queue()

    def work() -> None:
        try:
            answers.put(ask())
        except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
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
        raise UsageError(f"'{scheme}://' is an unknown URL scheme", did_you_mean(scheme, known))
    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        package = _PACKAGES.get(scheme, str(getattr(error, "name", None) or f"fsspec[{scheme}]"))
        raise UsageError(f"reading {scheme}:// needs the package {package}", f"pip install {package}") from error
    with _os_errors():
        info = system.info(path)
    if info.get("type") == "directory":
        raise UsageError(f"{url} is a folder", "Give files: .tar, .zip, .tsv; braces stand for several: {0000..0099}.")
    keys = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "updated", "created", "size")
    state = json.dumps([str(info.get(key)) for key in keys])
    return RemoteFile(url, info.get("size"), state, lambda: _Stream(system, path))


class _Stream:
    """File of fsspec, open for reading, whose errors are all OSErrors."""

    def __init__(self, system: Any, path: str) -> None:
        with _os_errors():
            self._file = system.open(path, "rb")

    def __enter__(self) -> "_Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, size: int) -> bytes:
        with _os_errors():
            return bytes(self._file.read(size))


@contextlib.contextmanager
def _os_errors() -> Iterator[None]:
    """Make OSErrors of the errors of fsspec's packages, which have no base class in common (botocore's, aiohttp's)."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(str(error) or type(error).__name__) from error
