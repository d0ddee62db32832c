"""Escaping of text from files (tensor names, folders, catalogs) for terminals and spreadsheets; secrets of URLs."""

import csv
import io
import logging
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from rich.text import Text

T = TypeVar("T")
_SHOWN = "\n\t"
_UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories: control and format characters, surrogates, line and paragraph separators."""

_TEXTS = 100_000  # checked at a time: the text of all is as large as they are
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

HIDDEN = "***"
"""Text in place of a secret."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/+\S+")
# A password may hold '/', as keys of S3 do; 'host:8080/' is a port.
_LOGIN = re.compile(r"(?<=:/)(/*)(?:[^\s/@:?#]*:(?!\d+(?:/|$))[^\s@]*|[^\s/@?#]+)@")
_PAIR = re.compile(r"(?P<before>[?&#])(?P<name>[^=&#\s]*)=(?P<value>[^&\s]*?)(?P<after>['\"),;:.\]}>]*(?=[&\s]|$))")
_TOKEN = re.compile(r"(?<=[?&])[^=&#\s]+(?=&|$)")
_SECRET_NAME = re.compile(
    r"sig|token|key|secret|pass|pw|pin\b|auth|cred|code|jwt|session|policy|hash|md5|mac|user|login|access|^x-|^s[a-z]$",
    re.IGNORECASE,
)
_PLAIN_VALUE = re.compile(r"[a-z_./,-]{0,40}|[\d.,]{1,8}")


def without_secrets(text: T) -> T:
    """Replace logins and secrets of queries in the URLs of a text.

    Example:
        >>> without_secrets("https://me:pw@host/a.tar?X-Amz-Signature=5f0c&unit=annotation: not found")
        'https://***@host/a.tar?X-Amz-Signature=***&unit=annotation: not found'
    """
    # A value of a query stays only if its name is none of a secret and it is a small number or a word in lower case, as
    # the options of data are; `#sha256=` stays. Whatever is written to disk, logged or printed passes through here; a
    # value that is no plain text is returned as it is.
    if not isinstance(text, str) or type(text) is not str or ":/" not in text:
        return text
    return cast(T, _URL.sub(_hidden, text))


def _hidden(url: re.Match[str]) -> str:
    text = _PAIR.sub(_hidden_pair, _LOGIN.sub(rf"\1{HIDDEN}@", url[0]))
    return _TOKEN.sub(HIDDEN, text) if url[1].lower() in ("http", "https") else text


def _hidden_pair(pair: re.Match[str]) -> str:
    name, value = pair["name"], pair["value"]
    plain = not _SECRET_NAME.search(name) and _PLAIN_VALUE.fullmatch(value)
    if plain or (pair["before"] == "#" and name == "sha256"):
        return pair[0]
    return f"{pair['before']}{name}={HIDDEN}{pair['after']}"


def plain_value(value: Any) -> Any:
    """Return a value of a request or recipe in YAML's types, without secrets of addresses."""
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    # A name of code that a file named is a kind of text, which YAML refuses to write.
    return without_secrets(str.__str__(value)) if isinstance(value, str) else value


def hide_secrets(record: logging.LogRecord) -> bool:
    """Replace the secrets of URLs in a log message; a filter of loggers that drops none."""
    record.msg, record.args = without_secrets(record.getMessage()), None
    return True


def visible(text: str) -> str:
    r"""Escape control characters, surrogates and changes of writing direction; hide secrets of URLs.

    Example:
        >>> visible("cat\x1b[2J")
        'cat\\x1b[2J'
    """
    text = without_secrets(text)
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        if character in _SHOWN or unicodedata.category(character) not in _UNSAFE
        else character.encode("unicode_escape").decode()
        for character in text
    )


def cut_middle(text: str, longest: int) -> str:
    """Return a text of at most so many characters; a longer one loses its middle, since names differ at their ends.

    Example:
        >>> cut_middle("simclr_resnet50_epoch100", 15)
        'simclr_…poch100'
    """
    if len(text) <= longest:
        return text
    kept = longest - 1
    return f"{text[: kept - kept // 2]}…{text[len(text) - kept // 2 :]}"


def table_cell(text: str, **given: Any) -> "Text":
    """Return a cell of a rich table with the text unchanged: no markup, control characters escaped."""
    from rich.text import Text

    return Text(visible(text), **given)


def spreadsheet_cell(value: object) -> object:
    """Put an apostrophe before text that a spreadsheet would run as a formula; numbers are unchanged.

    Example:
        >>> spreadsheet_cell("=1+1"), spreadsheet_cell(-1.5), spreadsheet_cell("-1.5")
        ("'=1+1", -1.5, '-1.5')
    """
    value = without_secrets(value)
    if not isinstance(value, str) or not value.startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def plain_cell(cell: str) -> str:
    """Return the original text of a `spreadsheet_cell`."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(_FORMULA) else cell


def csv_text(rows: Iterable[Sequence[object]], *, escape: bool = True) -> str:
    """Return rows as CSV that is safe to open in a spreadsheet; without `escape`, with the texts as they are."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    for row in rows:
        writer.writerow([spreadsheet_cell(cell) for cell in row] if escape else row)
    return buffer.getvalue()


def printable(name: str) -> str:
    r"""Return a file name that can be printed and written as UTF-8: stray bytes become \xNN."""
    try:
        name.encode()
    except UnicodeEncodeError:
        try:
            return os.fsencode(name).decode("utf-8", "backslashreplace")
        except UnicodeEncodeError:  # a lone surrogate, which JSON allows but file names do not
            return name.encode("utf-8", "backslashreplace").decode()
    return name


def all_printable(texts: Sequence[str]) -> Sequence[str]:
    """Return texts that can be written as UTF-8; those of JSON may hold half a character."""
    try:
        for start in range(0, len(texts), _TEXTS):
            "".join(texts[start : start + _TEXTS]).encode()
    except UnicodeEncodeError:
        return tuple(map(printable, texts))
    return texts


def html_page(template: Path, **values: Any) -> str:
    """Return a page of HTML: values are escaped and secrets of URLs hidden, so that a page may be sent on."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, finalize=without_secrets
    )
    return environment.from_string(template.read_text(encoding="utf-8")).render(**values)
