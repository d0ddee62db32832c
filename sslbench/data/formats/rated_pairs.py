"""Pairs of images with a rating: a table (image1, image2, score), a folder with pairs.csv, visual STS as Parquet files.

Persons said how similar the two images are. MIEB's visual STS has the columns sentence1, sentence2 and score.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sslbench.arrays import IntArray
from sslbench.data.containers.index import container_stamp
from sslbench.data.containers.listed import find_listed, folders_beside
from sslbench.data.containers.members import split_name
from sslbench.data.format import SourceFormat, plain_reader
from sslbench.data.formats import hf
from sslbench.data.formats.hf.files import find_files
from sslbench.data.formats.table import read_cells
from sslbench.data.joined import joined_images
from sslbench.data.maps.layout import in_order
from sslbench.data.source import Source
from sslbench.data.wording import part_name
from sslbench.errors import DataError
from sslbench.targets.target import Images
from sslbench.targets.triplets import RatedPairs

_FIRST = ("image1", "sentence1", "left")
_SECOND = ("image2", "sentence2", "right")
_SCORE = "score"
_TABLES = (".csv", ".tsv", ".jsonl")


def recognises(spec: str) -> bool:
    """Return whether a location is a table or files of rows that name two images and a score."""
    path = _table(spec)
    try:
        if path.suffix.lower() in _TABLES and path.is_file():
            with path.open(encoding="utf-8", errors="replace") as file:
                words = file.readline().replace('"', " ").replace(",", " ").replace("\t", " ").replace(";", " ").split()
            return _columns([word.rstrip(":") for word in words]) is not None
        if not hf.recognises(spec):
            return False
        files = find_files(spec, spec.removeprefix(hf.PREFIX))
        return _columns(hf.open_row_file(next(iter(files.values()))[0]).schema.names) is not None
    except (OSError, DataError, ValueError):
        return False


def _columns(names: Sequence[str]) -> tuple[str, str] | None:
    """Return the columns of both images, if there are these and one of scores."""
    first, second = (next((name for name in known if name in names), None) for known in (_FIRST, _SECOND))
    return None if first is None or second is None or _SCORE not in names else (first, second)


def open(spec: str) -> dict[str, Source]:
    """Return the pairs of every split. Pairs with the same first image stay together in intervals."""
    if (table := _table(spec)).suffix.lower() in _TABLES and table.is_file():
        return _of_table(spec, table)
    sources = {}
    for split, paths in find_files(spec, spec.removeprefix(hf.PREFIX)).items():
        sources[split_name(split) or split] = _rows(part_name(spec, split), split, paths)
    return in_order(sources)


def _table(spec: str) -> Path:
    return Path(spec) / "pairs.csv" if Path(spec).is_dir() else Path(spec)


def _of_table(spec: str, table: Path) -> dict[str, Source]:
    cells = read_cells(table)
    columns = _columns(list(cells.columns))
    if columns is None:
        raise DataError(
            f"{cells.name} does not name two images and a score", "The columns are image1, image2 and score."
        )
    parts: dict[str, list[int]] = {}
    for row in range(len(cells.columns[_SCORE])):
        split = str(cells.columns["split"][row] or "") if "split" in cells.columns else ""
        parts.setdefault(split_name(split) or split or "all", []).append(row)
    sources = {}
    for split, rows in parts.items():
        listed = [tuple(str(cells.columns[column][row] or "") for column in columns) for row in rows]
        if empty := [row for row, both in zip(rows, listed, strict=True) if "" in both]:
            raise DataError(f"{cells.name}, {cells.row_name(empty[0])}: an image of the pair is missing")
        paths = sorted({path for both in listed for path in both})
        images = find_listed(cells.name, paths, folders_beside(table))
        position = {path: i for i, path in enumerate(paths)}
        places = np.array([[position[path] for path in both] for both in listed], dtype=np.int64)
        ids = [f"{images.ids[first]} {number:06d}" for number, first in enumerate(places[:, 0])]
        scores = [_score(cells.columns[_SCORE][row], f"{cells.name}, {cells.row_name(row)}") for row in rows]
        sources[split] = rated_source(part_name(spec, split), ids, images.files, places, scores, images.notes)
    return in_order(sources)


def _rows(name: str, split: str, paths: Sequence[Path]) -> Source:
    """Return the pairs in Parquet or Arrow files."""
    opened = [hf.open_row_file(path) for path in paths]
    columns = _columns(opened[0].schema.names)
    if columns is None or any(file.schema.names != opened[0].schema.names for file in opened):
        raise DataError(f"{name}: not every file has the columns of {paths[0]}, two of images and 'score'")
    n = sum(file.n for file in opened)
    rows = np.concatenate([np.column_stack([np.full(f.n, i), np.arange(f.n)]) for i, f in enumerate(opened)])
    stamps = tuple(container_stamp(path) for path in paths)
    both = [hf.ColumnImages(tuple(map(str, paths)), stamps, column, rows.astype(np.int64)) for column in columns]
    cells = [cell for file in opened for cell in file.column(_SCORE).to_pylist()]
    scores = [_score(cell, f"{name}, row {row}") for row, cell in enumerate(cells)]
    ids = [f"{split}/{number:06d}" for number in range(n)]
    places = np.column_stack([np.arange(n), n + np.arange(n)])
    return rated_source(name, ids, joined_images(both), places, scores)


def _score(cell: Any, where: str) -> float:
    try:
        value = float(cell)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise DataError(
            f"{where}: score is {'missing' if cell in (None, '') else f'{str(cell)!a}, which is no number'}"
        )
    return value


def rated_source(
    name: str,
    ids: Sequence[str],
    images: Images,
    places: IntArray,
    scores: Sequence[float],
    notes: tuple[str, ...] = (),
) -> Source:
    """Return the source of pairs (N, 2), in order of their ids; see `RatedPairs`."""
    if not ids:
        raise DataError(f"{name} has no pair of images")
    order = np.array(sorted(range(len(ids)), key=ids.__getitem__), dtype=np.int64)
    return Source(
        name,
        tuple(ids[i] for i in order),
        RatedPairs(np.asarray(scores, np.float64)[order, None], images, places[order]),
        images.select(places[order, 0]),
        notes,
        {"image": tuple(images.path(int(places[i, 0])) for i in order)},
        "image",
    )


FORMAT = SourceFormat(__doc__, readers={RatedPairs: plain_reader(recognises, open)})
