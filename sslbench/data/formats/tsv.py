"""Rows with images inside (.tsv): key, image in base64, label, separated by tabs (a .tsv of paths is a table)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sslbench.data.containers.index import Index, indexed
from sslbench.data.containers.listed import image_id
from sslbench.data.containers.members import by_split, refuse_twice
from sslbench.data.containers.slices import BASE64, joined, whole_places
from sslbench.data.containers.sniff import base64_cell, has_base64_rows
from sslbench.data.format import NoOptions, SampleReader, SourceFormat
from sslbench.data.labels import labels_of_cells
from sslbench.data.source import Source
from sslbench.data.wording import counted
from sslbench.errors import DataError
from sslbench.targets.none import Unlabelled

MAX_LINE_BYTES = 1 << 28
"""Longest line that is read, 256 MiB."""


def recognises(spec: str) -> bool:
    """Return whether the string ends in .tsv and one of the first lines holds an image."""
    return spec.lower().endswith(".tsv") and not Path(spec).is_dir() and has_base64_rows(spec)


def open(spec: str) -> dict[str, Source]:
    """Return the images in the rows.

    Of the cells that are not the image, the first is the key and the second, if there is one, the label: a class, or
    several separated by ';'. A header is recognised by having no image.

    Ids are the keys. Base64 is the usual or the URL-safe one.
    """
    path = Path(spec)
    index, stamp = indexed(path, "tsv", _build)
    ids = [image_id(name, path.parent) for name in index.names]
    refuse_twice(spec, ids)
    images = joined([(path, stamp, index.names, whole_places(index.numbers[:, :2], BASE64))])
    labels = labels_of_cells(index.texts) if index.numbers[0, 2] else Unlabelled(len(ids))
    return by_split(spec, ids, labels, images, None, index.notes)


def _build(path: Path) -> Index:
    """Index the rows: key, label and place of the image."""
    keys: list[str] = []
    texts: list[str] = []
    numbers: list[tuple[int, int, int]] = []
    notes: tuple[str, ...] = ()
    image, width, at, number = None, 0, 0, 0
    with path.open("rb") as file:
        # Bounded, since another file of that suffix may have no line break.
        while line := file.readline(MAX_LINE_BYTES):
            number += 1
            start, at = at, at + len(line)
            if len(line) == MAX_LINE_BYTES:
                raise DataError(f"{path}, line {number}: longer than {MAX_LINE_BYTES:,} bytes")
            cells = line.rstrip(b"\r\n").split(b"\t")
            if cells == [b""]:
                continue
            if image is None:
                image, width = base64_cell(cells), len(cells)
                if image is None:
                    if number > 1:
                        raise DataError(f"{path}: neither of its first two lines has an image in base64")
                    notes = (f"{path}: the first line is taken as a header",)
                    continue
            key, label = _others(path, number, cells, image, width)
            keys.append(key)
            texts.append(label)
            # Behind the cells before it, each with its tab.
            numbers.append((start + sum(len(c) + 1 for c in cells[:image]), len(cells[image]), int(width > 2)))
    if not keys:
        raise DataError(f"{path} has no rows")
    return Index(tuple(keys), np.array(numbers, dtype=np.int64), tuple(texts), notes)


def _others(path: Path, number: int, cells: Sequence[bytes], image: int, width: int) -> tuple[str, str]:
    """Return key and label of a row; the label is empty if there is no cell for it."""
    if len(cells) != width or not 2 <= width <= 3:
        expected = "2 or 3" if not 2 <= width <= 3 else f"{width} as before"
        raise DataError(
            f"{path}, line {number}: {counted(len(cells), 'cell')}, should be {expected}",
            "A row is key, image, label; or key, image.",
        )
    try:
        texts = [cell.decode("utf-8-sig").strip() for i, cell in enumerate(cells) if i != image]
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, line {number}: not in UTF-8: {error}") from error
    if not all(texts):
        raise DataError(f"{path}, line {number}: the {'key' if not texts[0] else 'label'} is empty")
    return texts[0], texts[1] if len(texts) > 1 else ""


FORMAT = SourceFormat(__doc__, SampleReader(recognises, lambda request: open(request.spec), NoOptions))
