"""Recognition of the format of a file by its first few thousand bytes, where several formats share a suffix."""

import binascii
import codecs
import contextlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from sslbench.data.regular import open_regular, read_all
from sslbench.data.wording import one_line
from sslbench.errors import DataError, WeightsError

_MARKS = {
    # First, since the mark of UTF-32 LE begins with that of UTF-16 LE.
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# Bytes that are not in the text of any table.
_CONTROL = frozenset(range(32)) - frozenset(b"\t\n\r\f")


def encoding_of(head: bytes) -> str:
    r"""Return the encoding that the mark at the beginning of a text says; UTF-8 without one.

    >>> encoding_of(b"\xff\xfep\0a\0"), encoding_of(b"path,label")
    ('utf-16', 'utf-8-sig')
    """
    return next((encoding for mark, encoding in _MARKS.items() if head.startswith(mark)), "utf-8-sig")


def read_text(path: Path) -> tuple[str, tuple[str, ...]]:
    """Return the text of a file, and a note if it is not in UTF-8."""
    try:
        with open_regular(str(path)) as file:
            content = read_all(file)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    encoding = encoding_of(content[:4])
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        text, encoding = _of_windows(path, content, error), "cp1252"
    if encoding == "utf-8-sig":
        return text, ()
    name = "Windows-1252 (Latin-1)" if encoding == "cp1252" else encoding.upper()
    return text, (f"{path} is not in UTF-8 and is read as {name}",)


def text_lines(file: Path) -> list[str]:
    """Return the lines of a text in UTF-8 without white space around them, and without empty ones."""
    return [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def json_of(path: Path) -> Any:
    """Return the content of a JSON file that comes with the data."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is damaged: {error}") from error


@contextlib.contextmanager
def unpickling(path: Path, problem: str, remedy: str | None = None) -> Iterator[Callable[[IO[bytes]], Any]]:
    """Yield a function that reads a pickle without running it; what fails in the block is told as `problem`."""
    from sslbench.weights.reading.unpickle import RestrictedPickle  # loads torch

    try:
        yield RestrictedPickle(path.stat().st_size).read
    except WeightsError as error:
        raise DataError(f"{path}: {error.message}") from error
    except Exception as error:  # a damaged file raises anything
        raise DataError(f"{path} is {problem}, or is damaged: {one_line(error)}", remedy) from error


def _of_windows(path: Path, content: bytes, error: UnicodeDecodeError) -> str:
    """Return text of one byte per character, as Excel saves tables in western Europe."""
    advice = "Save it as UTF-8."
    if not _CONTROL.isdisjoint(content):
        # Every Latin letter has a zero byte there.
        what = "UTF-16 without its mark" if content.count(0) > len(content) / 4 else "a binary file, or damaged"
        raise DataError(f"{path} is not text in UTF-8 (byte {error.start:,}): it may be {what}", advice) from error
    try:
        return content.decode("cp1252")
    except UnicodeDecodeError:
        raise DataError(f"{path} is neither text in UTF-8 nor in Windows-1252 (Latin-1): {error}", advice) from error


SUFFIXES = frozenset(
    ".jpg .jpeg .jpe .jfif .mpo .png .apng .gif .bmp .dib .webp .tif .tiff .ppm .pgm .pbm .pnm .pfm .avif .avifs "
    ".heif .heic .jp2 .j2k .jpx .ico .tga .qoi .dds .pcx .psd".split()
)
"""Suffixes of image files, in lower case."""


ARRAYS = frozenset((".npy", ".npz"))
"""Suffixes of arrays: images only where there are no others, since labels are stored as arrays too."""


VIDEOS = frozenset(
    ".mp4 .m4v .mov .avi .mkv .webm .mpg .mpeg .mpe .m2v .ts .mts .m2ts .wmv .asf .flv .f4v .3gp .3g2 .ogv .vob".split()
)
"""Suffixes of video files: samples only where there are no images."""


_CLUTTER = frozenset(("__macosx", "thumbs.db", "desktop.ini", "@eadir", "lost+found", "$recycle.bin"))


def is_clutter(name: str) -> bool:
    """Return whether a file or folder is hidden or made by an operating system."""
    return name.startswith(".") or name.lower() in _CLUTTER


HEAD = 4096
"""Bytes in which a file says what it is."""
_RECORDS = re.compile(r"\s*\[\s*\{")
_LINES = re.compile(r"\s*\{[^\r\n]*\}[ \t]*\r?\n\s*\{")
_FIRST_KEY = re.compile(r'\s*\{\s*"((?:[^"\\]|\\.)*)"\s*:')
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]+={0,2}")
_SHORTEST_IMAGE = 40
_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM", b"II*\0", b"MM\0*", b"RIFF", b"P5", b"P6")


BOX_COLUMNS = ("xmin", "ymin", "xmax", "ymax")
"""Columns of a table of boxes."""
OPEN_IMAGES = frozenset(("ImageID", "LabelName", "Confidence"))
"""Columns of the tables of Open Images."""
_OF_BOXES = dict(zip(("x_min", "y_min", "x_max", "y_max"), BOX_COLUMNS, strict=True))


def head(spec: str) -> bytes:
    """Return the first bytes of a file; b'' if it cannot be read, which opening it reports."""
    try:
        with open_regular(spec) as file:
            return file.read(HEAD)
    except OSError:
        return b""


def head_text(spec: str) -> str:
    """Return the first characters of a text file; '' if it cannot be read."""
    return decoded(head(spec))


def decoded(content: bytes) -> str:
    """Return the first bytes of a text as characters."""
    # The last character may be cut.
    return content[:HEAD].decode(encoding_of(content), "replace")


def is_json_table(spec: str) -> bool:
    """Return whether a .json holds records, in a list or one per line, or maps image files to labels: no manifest."""
    text = head_text(spec)
    if _RECORDS.match(text) or _LINES.match(text):
        return True
    match = _FIRST_KEY.match(text)
    return match is not None and PurePosixPath(match[1]).suffix.lower() in SUFFIXES


def header_of(spec: str) -> list[str]:
    """Return the names in the first line of a table; [''] if it cannot be read."""
    lines = head_text(spec).splitlines()
    return [name.strip().strip('"') for name in re.split(r"[,;\t|]", lines[0] if lines else "")]


def has_box_columns(spec: str) -> bool:
    """Return whether a .csv or .tsv has the columns xmin, ymin, xmax and ymax, in pixels."""
    if not spec.lower().endswith((".csv", ".tsv")) or is_open_images(spec):
        return False
    return set(BOX_COLUMNS) <= {box_column(name) for name in header_of(spec)}


def is_open_images(spec: str) -> bool:
    """Return whether a .csv has the columns of boxes or labels of Open Images."""
    return spec.lower().endswith(".csv") and set(header_of(spec)) >= OPEN_IMAGES


def box_column(name: str) -> str:
    """Return the name of a column of a table of boxes in lower case, that of a corner as in `BOX_COLUMNS`."""
    lower = name.strip().lower()
    return _OF_BOXES.get(lower, lower)


def base64_cell(cells: list[bytes]) -> int | None:
    """Return the first cell of a row that begins like an image in base64 (it may be truncated); None without one."""
    return next((i for i, cell in enumerate(cells) if _begins_like_image(cell)), None)


def has_base64_rows(spec: str) -> bool:
    """Return whether one of the first two lines of a .tsv has an image in base64."""
    lines = head(spec).split(b"\n")[:2]
    return any(base64_cell(line.rstrip(b"\r").split(b"\t")) is not None for line in lines)


def is_base64_image(text: str) -> bool:
    """Return whether a text is an image in base64, plain or as a data URL."""
    cell = text[:4096].partition("base64,")[2] if text.startswith("data:image") else text[:4096]
    return cell.isascii() and _begins_like_image(cell.encode())


def _begins_like_image(cell: bytes) -> bool:
    if len(cell) < _SHORTEST_IMAGE or not _BASE64.fullmatch(cell):
        return False
    # A multiple of four characters, which needs no padding.
    start = binascii.a2b_base64(cell[:32].replace(b"-", b"+").replace(b"_", b"/"))
    return start.startswith(_SIGNATURES)
