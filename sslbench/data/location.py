"""Data locations as users write them: names of the catalog, URLs and options behind a '?' resolved."""

import dataclasses
import logging
import os
import re
from pathlib import Path
from typing import Literal

from sslbench.config import setting
from sslbench.data import catalog, remote, strings
from sslbench.data.decode.sampling import ClipOptions
from sslbench.data.format import all_formats, readable_formats
from sslbench.data.wording import repeated
from sslbench.errors import UsageError
from sslbench.paths import file_url_path

SCHEME = re.compile(r"(?P<scheme>[A-Za-z][\w.+-]+):(?P<rest>.*)", re.DOTALL)
PATTERN = re.compile(r"\{.*\}|[*?]")
"""Text that stands for several files: {0000..0099}, {a,b}, *."""
OF_ANY_IMAGES = frozenset(("labels", "channels"))
"""Options of images of every format, beside those of tiles and clips."""
_OPTIONS = re.compile(r"(?P<location>[^?]+)\?(?P<options>[a-z_]+=[^&?]*(&[a-z_]+=[^&?]*)*)")
_log = logging.getLogger("sslbench")


@dataclasses.dataclass(frozen=True)
class TileOptions:
    """Options behind a '?' of any images: photos/?unit=tile&size=224&overlap=32."""

    unit: Literal["tile"] = setting("tile", "unit of a sample: a tile of an image")
    size: int = setting(224, "side of a tile", unit="pixels")
    overlap: int = setting(0, "width that neighbouring tiles share; more at the last one of a row", unit="pixels")

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 <= self.overlap < self.size:
            raise UsageError(
                f"size={self.size}, overlap={self.overlap}: size should be at least 1, and overlap smaller than size"
            )


@dataclasses.dataclass(frozen=True)
class Location:
    """Resolved data location.

    Attributes:
        text: a path, a pattern of paths, or SCHEME:NAME.
        options: text behind the '?': key -> value.
        image_column: image column given by the catalog.
        label_column: label column given by the catalog.
    """

    text: str
    options: dict[str, str]
    image_column: str | None = None
    label_column: str | None = None


def locate(spec: str) -> Location:
    """Resolve a data location: look up names of the catalog, split off the options, copy what a URL names."""
    if not spec:
        raise UsageError("the data location is empty", readable_formats())
    if strings.is_several(spec):
        return Location(spec, {})  # the listed locations are resolved one by one
    text, options = _without_options(_plain(spec))
    named = catalog.find(text)
    if named is None:
        return Location(_local_path(text), options)
    _log.info("'%s' is %s (%s)", named.name, named.entry.data, named.file)
    if strings.is_several(named.entry.data):
        return Location(named.entry.data, options, named.entry.image_column, named.entry.label_column)
    inner, defaults = _without_options(_plain(named.entry.data))
    return Location(_local_path(inner), defaults | options, named.entry.image_column, named.entry.label_column)


def absolute(spec: str) -> str:
    """Return the same location, valid in every working folder: existing paths and patterns of paths become absolute."""
    spec = strings.with_labels_at(spec, absolute)
    if strings.is_several(spec):
        return strings.with_locations(spec, absolute)
    text, options = _without_options(_plain(spec))
    scheme = SCHEME.fullmatch(text)
    is_path = Path(text).exists() or (PATTERN.search(text) and not scheme)
    query = "&".join(f"{key}={value}" for key, value in options.items())
    if not is_path and scheme and Path(scheme["rest"]).exists() and os.sep in scheme["rest"]:
        text = f"{scheme['scheme']}:{os.path.abspath(scheme['rest'])}"  # noqa: PTH100 - links stay as they are
    elif is_path:
        text = os.path.abspath(text) + ("/" if text.endswith("/") else "")  # noqa: PTH100
    return f"{text}?{query}" if query else text


def _local_path(text: str) -> str:
    """Return the path of a URL's local copy, with the URL's braces; any other text unchanged."""
    if not remote.is_url(text) or Path(text).exists():
        return text
    urls = strings.expanded(text)
    sharded = all(url.partition("?")[0].lower().endswith(remote.SHARDS) for url in urls)
    copies = remote.shards(urls) if sharded else remote.local_copies(urls)
    if len(urls) == 1:
        return str(copies[0])
    if len({copy.parent for copy in copies}) > 1:
        raise UsageError(f"{text}: in a URL, braces are allowed in the file name only, not in a folder")
    return str(copies[0].parent / text.rpartition("/")[2])


def _plain(spec: str) -> str:
    """Return the path of file:///PATH and of ~/PATH; any other text unchanged."""
    if (path := file_url_path(spec)) is not None:
        return str(path)
    return os.path.expanduser(spec) if spec.startswith("~") else spec  # noqa: PTH111 - a spec is no path yet


def _without_options(spec: str) -> tuple[str, dict[str, str]]:
    match = _OPTIONS.fullmatch(spec)
    if match is None or Path(spec).exists():
        return spec, {}
    pairs = [part.partition("=") for part in match["options"].split("&")]
    options = {key: value for key, _, value in pairs}
    readers = [found.samples.options for found in all_formats() if found.samples is not None]
    known = {field.name for kind in (*readers, TileOptions, ClipOptions) for field in dataclasses.fields(kind)}
    known |= OF_ANY_IMAGES
    if spec.startswith(("http://", "https://")) and not set(options) <= known:
        return spec, {}  # a query for the server
    if twice := repeated(key for key, _, _ in pairs):
        raise UsageError(f"'{spec}' gives the option '{twice[0]}' more than once", "Keep one of them.")
    return match["location"], options
