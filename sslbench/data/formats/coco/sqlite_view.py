"""kwcoco's sqlite view of a manifest (`CocoDataset.view_sql`), read without kwcoco and never written to."""

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sslbench.data.containers.sniff import head

_SIGNATURE = b"SQLite format 3\0"
_REST = "_unstructured"
"""Column with the keys that have no column."""


def is_sqlite(spec: str) -> bool:
    """Return whether a file is a database of sqlite."""
    return head(spec).startswith(_SIGNATURE)


def view_entries(spec: str, tables: Sequence[str]) -> Iterator[tuple[str, Any, bool]]:
    """Yield the entries of a view as those of a manifest: key, value, and whether it is a row of a table.

    Args:
        spec: the file.
        tables: that are read row by row; others are yielded whole.

    Raises:
        ValueError: the file is damaged.
        OSError: the file cannot be read.
    """
    with Path(spec).open("rb"):  # raises OSError with the reason, which sqlite does not know
        pass
    try:
        uri = f"{Path(spec).resolve().as_uri()}?mode=ro&immutable=1"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as database:
            names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for name in [name for name in names if name not in tables]:
                yield name, list(_rows(database, name)), False
            for name in [name for name in tables if name in names]:
                yield name, [], False
                for row in _rows(database, name):
                    yield name, row, True
    except sqlite3.Error as error:
        raise ValueError(f"damaged sqlite view: {error}") from error


def _rows(database: sqlite3.Connection, table: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table as the mappings that a manifest holds, without empty values."""
    quoted = '"' + table.replace('"', '""') + '"'
    columns = [(str(name), str(kind)) for _, name, kind, *_ in database.execute(f"PRAGMA table_info({quoted})")]
    for values in database.execute(f"SELECT * FROM {quoted} ORDER BY rowid"):
        row: dict[str, Any] = {}
        for (name, kind), value in zip(columns, values, strict=True):
            if value is None or name.startswith("_bbox_"):
                continue
            plain = json.loads(value) if kind == "JSON" and isinstance(value, str) else value
            if name != _REST:
                row[name] = plain
            elif isinstance(plain, dict):
                row |= plain
        yield row
