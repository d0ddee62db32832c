"""Readers of tables without header: a path per line, and records in JSON."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from sslbench.data.containers.sniff import SUFFIXES, read_text
from sslbench.data.wording import some
from sslbench.errors import DataError


@dataclasses.dataclass(frozen=True)
class TableColumns:
    """Column name -> its cells; `row_name(i)` is the place of row i in the file."""

    name: str
    columns: dict[str, Sequence[Any]]
    row_name: Callable[[int], str]
    notes: tuple[str, ...] = ()


def read_lines(path: Path) -> TableColumns:
    """Read a .txt: a path per line; or a path, white space (or a comma), and a label without white space."""
    text, notes = read_text(path)
    lines = [(i, line.strip()) for i, line in enumerate(text.splitlines(), 1)]
    rows = [(i, *_path_and_label(line)) for i, line in lines if line]
    numbers = [i for i, _, _ in rows]
    with_label = [i for i, _, label in rows if label is not None]
    if with_label and len(with_label) < len(rows):
        odd = sorted(set(numbers) - set(with_label))
        raise DataError(f"{path}: some lines have no label: line {some(odd)}")
    columns: dict[str, Sequence[Any]] = {"path": [file for _, file, _ in rows]}
    if with_label:
        columns["label"] = [label for _, _, label in rows]
    return TableColumns(str(path), columns, lambda row: f"line {numbers[row]}", notes)


def _path_and_label(line: str) -> tuple[str, str | None]:
    for separator in "\t;,":
        file, _, label = line.rpartition(separator)
        if PurePosixPath(file.strip().lower()).suffix in SUFFIXES and label.strip():
            return file.strip(), label.strip()
    # A path may contain spaces; a label here does not.
    if PurePosixPath(line).suffix.lower() in SUFFIXES or len(line.split()) == 1:
        return line, None
    file, label = line.rsplit(maxsplit=1)
    return file, label


def read_json(path: Path) -> TableColumns:
    """Read a .json: a list of records, a mapping from image to label, or a record per line."""
    text, _ = read_text(path)
    try:
        content = json.loads(text, object_pairs_hook=_without_twins)
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            raise DataError(f"{path} is not JSON: {error}") from error
        return _lines_of_json(path, text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from error
    if isinstance(content, dict):
        content = [{"path": image, "label": label} for image, label in content.items()]
    return _records(path, content, "entry")


def read_json_lines(path: Path) -> TableColumns:
    """Read a .jsonl: a record per line, or as for a .json."""
    text, _ = read_text(path)
    return read_json(path) if text.lstrip().startswith("[") else _lines_of_json(path, text)


def _lines_of_json(path: Path, text: str) -> TableColumns:
    records = []
    for i, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                records.append(json.loads(line, object_pairs_hook=_without_twins))
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}, line {i} is not JSON: {error}") from error
    return _records(path, records, "record")


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key '{next(key for key in keys if keys.count(key) > 1)}' occurs twice")
    return record


def _records(path: Path, records: Any, what: str) -> TableColumns:
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise DataError(f"{path} is not a list of records", 'Such as: [{"path": "a.jpg", "label": "cat"}, ...]')
    flat = [_flat(record) for record in records]
    names = list(dict.fromkeys(key for record in flat for key in record))

    def is_nested(value: object) -> bool:
        return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(v, dict | list) for v in value))

    nested = [name for name in names if any(is_nested(record.get(name)) for record in flat)]
    columns: dict[str, Sequence[Any]] = {
        name: [record.get(name) for record in flat] for name in names if name not in nested
    }
    notes = (f"{path}: {some(nested)} left out, which hold more than names and numbers",) if nested else ()
    return TableColumns(str(path), columns, lambda row: f"{what} {row + 1}", notes)


def _flat(record: dict[Any, Any]) -> dict[str, Any]:
    """Return a record whose mappings are keys of their own: {"image": {"path": "a.jpg"}} has `image.path`."""
    found: dict[str, Any] = {}
    # The last one is taken first: reversed, the keys come in their order.
    waiting = [(str(key), value) for key, value in reversed(record.items())]
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, dict) and value:
            waiting += [(f"{key}.{inner}", content) for inner, content in reversed(value.items())]
        else:
            found[key] = value
    return found
