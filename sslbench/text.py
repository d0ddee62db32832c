"""Escaping of text from files (tensor names, folders, catalogs) for terminals and spreadsheets."""

import csv
import io
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.text import Text

_SHOWN = "\n\t"
_UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories: control and format characters, surrogates, line and paragraph separators."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def visible(text: str) -> str:
    r"""Escape control characters, surrogates and changes of writing direction.

    Example:
        >>> visible("cat\x1b[2J")
        'cat\\x1b[2J'
    """
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
    """Return a cell of a rich table with the text unchanged: no markup, control characters escaped.

    Args:
        text: of the cell.
        given: further arguments of rich's `Text`, such as style.
    """
    from rich.text import Text

    return Text(visible(text), **given)


def spreadsheet_cell(value: object) -> object:
    """Put an apostrophe before text that a spreadsheet would run as a formula; numbers are unchanged.

    Example:
        >>> spreadsheet_cell("=1+1"), spreadsheet_cell(-1.5), spreadsheet_cell("-1.5")
        ("'=1+1", -1.5, '-1.5')
    """
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
