"""Remote file, the place of its copy, and the record of its state beside the copy."""

import dataclasses
import hashlib
import json
import os
import re
import urllib.parse
from pathlib import Path
from typing import Any

from sslbench.data.hashes import Stamp
from sslbench.data.remote import cache
from sslbench.errors import UsageError

_URL = re.compile(r"[A-Za-z][\w+.-]*://.+", re.DOTALL)


def is_url(spec: str) -> bool:
    """Return whether the string is a URL such as s3://... or https://..."""
    return _URL.fullmatch(spec) is not None


@dataclasses.dataclass(frozen=True)
class Origin:
    """Remote or compressed file in one state, and the place of its local copy.

    Attributes:
        url: of the file, without secrets; for a compressed local file its path.
        state: text that changes with the file's content (ETag, time and size).
        size: bytes of the (packed) file; None if the server does not say.
        place: path of the copy.
        address: URL to fetch it from, with its secrets, which never go to disk.
    """

    url: str
    state: str
    size: int | None
    place: str
    address: str = dataclasses.field(default="", repr=False, compare=False)

    @property
    def name(self) -> str:
        """Name that no other file has, the same on every machine: URLs may differ in their hidden parts only."""
        return f"{Path(self.place).parent.name}/{self.url}"

    @property
    def stamp(self) -> Stamp:
        """Stamp of the file, the same on every machine."""
        number = int.from_bytes(hashlib.sha256(f"{self.name}\0{self.state}".encode()).digest()[:12])
        # The copy's modification time: even whole seconds, which every file system can store.
        return self.size or 0, 2 * (number % 2**29) * 10**9, 0, number >> 33


def place_of(url: str) -> Path:
    """Return the path of the local copy of a URL; files of one remote folder share a folder and keep their names."""
    parts = urllib.parse.urlsplit(url)
    folder, _, name = parts.path.rpartition("/") if parts.path.strip("/") else ("", "", parts.hostname or "")
    key = f"{parts.scheme}://{parts.netloc}{folder}?{parts.query}"
    name = urllib.parse.unquote(name).replace("/", "_")
    if not name or name in (".", ".."):
        raise UsageError(f"{url} names no file")
    return cache.folder() / hashlib.sha256(key.encode()).hexdigest()[:16] / name


def write_info(origin: Origin) -> None:
    """Write the origin to a file beside the copy; it stays when the copy is evicted.

    Raises:
        UsageError: the folder cannot be written.
    """
    about = json.dumps({"url": origin.url, "state": origin.state, "size": origin.size})
    info = Path(origin.place + ".info")
    new = info.with_name(f".{info.name}.{os.getpid()}")
    with cache.writable(info.parent):
        new.write_text(about, encoding="utf-8")
        new.replace(info)


def known_of(place: Path) -> dict[str, Any] | None:
    """Return the record that `write_info` wrote; None if it is missing or damaged."""
    try:
        known: dict[str, Any] = json.loads(Path(f"{place}.info").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return known if known.keys() >= {"url", "state", "size"} else None
