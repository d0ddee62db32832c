"""Remote files by URL: http and https through the standard library, other schemes through fsspec."""

import base64
import dataclasses
import functools
import http.client
import json
import re
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from email.message import Message
from typing import Any

from sslbench.errors import UnreachableError, UsageError
from sslbench.names import did_you_mean
from sslbench.text import without_secrets

_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
# Timeout of a socket that receives nothing, in seconds.
_TIMEOUT_S = 60

_HEAD_REFUSED = (400, 401, 403, 405, 501)


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
    """Return the size and state of a remote file, as its server gives them; the content is not read."""
    if re.search(r"[\s\x00-\x1f]|%00", url):
        raise UsageError(f"{url!r} is not a URL: it has a space or a control character", "Write a space as %20.")
    try:
        urllib.parse.urlsplit(url).port  # noqa: B018 - raises for an invalid port
    except ValueError as error:
        # The error would show a part of the address, which may be of a login.
        raise UsageError(f"{url} is not a URL: its host or port cannot be read") from error
    return _over_http(url) if url.startswith(("http://", "https://")) else _over_fsspec(url)


def refuse_unreachable(address: str) -> None:
    """Refuse an http address whose server, or the proxy that the environment names, does not accept connections."""
    parts = urllib.parse.urlsplit(address)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy and not urllib.request.proxy_bypass(parts.netloc):
        parts = urllib.parse.urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=10).close()
    except OSError as error:
        raise UnreachableError(f"{parts.hostname} cannot be reached ({error.strerror or error})") from error


def _over_http(url: str) -> RemoteFile:
    """Ask with HEAD; where that is refused, with GET of the first byte."""
    try:
        head = _headers(_request(url, method="HEAD"))
    except urllib.error.HTTPError as error:
        if error.code not in _HEAD_REFUSED:
            raise
        # URLs that are signed for GET refuse HEAD.
        head = _headers(_request(url, headers={"Range": "bytes=0-0"}))
    length = head.get("Content-Length")
    # Of a range, Content-Length is that of the part.
    if (whole := re.fullmatch(r"bytes \d+-\d+/(\d+)", head.get("Content-Range") or "")) is not None:
        length = whole[1]
    if length is not None and not re.fullmatch(r"\d{1,18}", length):
        raise OSError(f"the server reports a length of '{length[:40]}' bytes")
    state = [head.get("ETag"), head.get("Last-Modified"), length]
    opened = functools.partial(urllib.request.urlopen, _request(url), timeout=_TIMEOUT_S)
    return RemoteFile(url, None if length is None else int(length), json.dumps(state), opened)


def _request(url: str, **given: Any) -> urllib.request.Request:
    """Return a request, with the login in the URL as a header."""
    parts = urllib.parse.urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(parts._replace(netloc=host).geturl(), **given)
    if at:
        coded = base64.b64encode(urllib.parse.unquote(login).encode()).decode()
        # For its server alone: a redirection may lead to another one.
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


def file_system(address: str) -> tuple[Any, str]:
    """Return fsspec's file system of an address, and the path in it."""
    import fsspec

    scheme, schemes = address.partition("://")[0], sorted(fsspec.available_protocols())
    if scheme not in schemes:
        raise UsageError(f"'{scheme}://' is an unknown URL scheme", did_you_mean(scheme, schemes))
    try:
        system, path = fsspec.core.url_to_fs(address)
    except ImportError as error:
        package = _PACKAGES.get(scheme, str(getattr(error, "name", None) or f"fsspec[{scheme}]"))
        raise UsageError(f"{scheme}:// needs the package {package}", f"pip install {package}") from error
    except ValueError as error:
        raise UsageError(f"{address}: {error}", "Write s3://BUCKET/FOLDER or gs://BUCKET/FOLDER.") from error
    return system, str(path)


def state_of(info: dict[str, Any]) -> str:
    """Return a text that changes with the content of a file, from the facts that fsspec gives."""
    keys = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "updated", "created", "size")
    return json.dumps([str(info.get(key)) for key in keys])


def _over_fsspec(url: str) -> RemoteFile:
    system, path = file_system(url)
    try:
        info = system.info(path)
    except OSError:
        raise
    except Exception as error:  # errors of fsspec's packages have no base class in common (botocore's, aiohttp's)
        raise OSError(str(error) or type(error).__name__) from error
    if info.get("type") == "directory":
        raise UsageError(f"{url} is a folder", "Give files: .tar, .zip, .tsv; braces stand for several: {0000..0099}.")
    return RemoteFile(url, info.get("size"), state_of(info), functools.partial(system.open, path, "rb"))
