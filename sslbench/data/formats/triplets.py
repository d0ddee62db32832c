"""Triplets of images with a choice: NIGHTS (with data.csv), a table (ref, left, right, choice), `triplets:PLACE`.

Of a reference and two candidates persons chose the one that is more similar to it.

NIGHTS (Fu et al., DreamSim, NeurIPS 2023) is a folder with data.csv: ref_path, left_path, right_path, left_vote,
right_vote, votes and split. Other tables have the columns ref, left, right and choice (left or right), or votes.
`triplets:PLACE` makes triplets of any images with classes: one candidate is of the class of the reference.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from sslbench.arrays import IntArray
from sslbench.config import setting
from sslbench.data.containers.listed import find_listed, folders_beside
from sslbench.data.containers.members import split_name
from sslbench.data.format import Reader, SourceFormat
from sslbench.data.formats.table import read_cells
from sslbench.data.formats.table.lists import TableColumns
from sslbench.data.maps.layout import in_order
from sslbench.data.open import open_data
from sslbench.data.source import Source
from sslbench.data.wording import part_name
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean
from sslbench.targets.classes import Classes
from sslbench.targets.target import Images
from sslbench.targets.triplets import Triplets

PREFIX = "triplets:"
SIDES = ("left", "right")
NIGHTS_VOTES = 6
"""Persons of a triplet of NIGHTS who agree, at least: the authors leave out the others."""
# Triplets made of each image
_EACH = 4
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "ref": ("ref_path", "ref", "reference"),
    "left": ("left_path", "left"),
    "right": ("right_path", "right"),
}


@dataclasses.dataclass(frozen=True)
class TripletOptions:
    """Options behind a '?': nights?min_votes=8."""

    min_votes: int | None = setting(
        None, "leave out triplets on which fewer persons agree; null: 6 where the table has a column votes"
    )


def recognises(spec: str, _: Mapping[str, str]) -> bool:
    """Return whether a location starts with 'triplets:', is a table, or a folder with data.csv."""
    table = _table(spec)
    return spec.startswith(PREFIX) or (table.is_file() and table.suffix.lower() in (".csv", ".tsv", ".jsonl"))


def _table(spec: str) -> Path:
    return Path(spec) / "data.csv" if Path(spec).is_dir() else Path(spec)


def open(spec: str, options: TripletOptions) -> dict[str, Source]:
    """Return the triplets of every split. Triplets of one reference stay together in intervals."""
    if spec.startswith(PREFIX):
        return {split: made_triplets(part) for split, part in open_data(spec.removeprefix(PREFIX)).items()}
    if options.min_votes is not None and options.min_votes < 1:
        raise UsageError(f"{spec}: min_votes should be at least 1, not {options.min_votes}")
    table = _table(spec)
    cells = read_cells(table)
    columns = cells.columns
    names = {}
    for wanted, known in _COLUMNS.items():
        name = next((each for each in known if each in columns), None)
        if name is None:
            raise UsageError(f"{cells.name} has no column '{wanted}'", did_you_mean(wanted, list(columns)))
        names[wanted] = name
    if "choice" not in columns and not {"left_vote", "right_vote"} <= set(columns):
        raise UsageError(f"{cells.name} has no column 'choice', and no left_vote and right_vote")
    parts: dict[str, list[int]] = {}
    for row in range(len(cells.columns[names["ref"]])):
        split = _text(cells, "split", row)
        parts.setdefault(split_name(split) or split or "all", []).append(row)
    return in_order({split: _source(spec, split, cells, rows, names, options) for split, rows in parts.items()})


def triplets_source(
    name: str, ids: Sequence[str], images: Images, places: IntArray, choices: IntArray, notes: tuple[str, ...] = ()
) -> Source:
    """Return the source of triplets, in order of their ids.

    An id is that of the reference, a space and a number; places are (N, 3), see `Triplets`; choices 0: left, 1: right.
    """
    order = np.array(sorted(range(len(ids)), key=ids.__getitem__), dtype=np.int64)
    return Source(
        name,
        tuple(ids[i] for i in order),
        Triplets(np.asarray(choices, dtype=np.int64)[order], images, places[order]),
        images.select(places[order, 0]),
        notes,
        {"reference": tuple(ids[i].rpartition(" ")[0] for i in order)},
        "reference",
    )


def made_triplets(source: Source) -> Source:
    """Return triplets of labelled images: of the two candidates, one has the class of the reference.

    They are drawn from a fixed seed; images whose class has no other image are no references.
    """
    if not isinstance(source.target, Classes):
        raise DataError(f"{source.name}: triplets are made of images with one class each")
    values, places, choices = source.target.values, list[tuple[int, int, int]](), list[int]()
    for i in range(len(source)):
        same, other = np.flatnonzero(values == values[i]), np.flatnonzero(values != values[i])
        same = same[same != i]
        if not len(same) or not len(other):
            continue
        # Seeded by position: the draws of an image do not depend on how many triplets others have.
        draw = np.random.default_rng((0, i))
        for _ in range(_EACH):
            pair = int(draw.choice(same)), int(draw.choice(other))
            right = int(draw.integers(2))
            places.append((i, *(pair[::-1] if right else pair)))
            choices.append(right)
    if not places:
        raise DataError(f"{source.name} has no two classes, one of them with two images, so no triplet can be made")
    ids = [f"{source.ids[row[0]]} {number % _EACH}" for number, row in enumerate(places)]
    note = f"{source.name}: {len(places):,} triplets made by classes, not chosen by persons"
    return triplets_source(source.name, ids, source.images, np.array(places), np.array(choices), (note,))


def _source(
    text: str, split: str, table: TableColumns, rows: Sequence[int], names: Mapping[str, str], options: TripletOptions
) -> Source:
    name = part_name(text, split)
    least = options.min_votes
    if least is None and "votes" in table.columns:
        least = NIGHTS_VOTES
    agreed = [row for row in rows if least is None or _number(table, row, "votes") >= least]
    chosen = [(row, choice) for row in agreed if (choice := _choice(table, row)) is not None]
    notes = []
    if len(agreed) < len(rows):
        notes.append(f"{name}: {len(rows) - len(agreed):,} triplets with fewer than {least} equal votes are left out")
    if len(chosen) < len(agreed):
        notes.append(f"{name}: {len(agreed) - len(chosen):,} triplets with as many votes for both are left out")
    if not chosen:
        raise DataError(f"{name} has no triplet on which enough persons agree", "Give a smaller ?min_votes=.")
    listed = [tuple(_text(table, names[part], row) for part in _COLUMNS) for row, _ in chosen]
    paths = sorted({path for row in listed for path in row})
    images = find_listed(table.name, paths, folders_beside(Path(table.name)))
    position = {path: i for i, path in enumerate(paths)}
    places = np.array([[position[path] for path in row] for row in listed], dtype=np.int64)
    ids = [f"{images.ids[row[0]]} {number:06d}" for number, row in enumerate(places)]
    choices = np.array([choice for _, choice in chosen])
    return triplets_source(name, ids, images.files, places, choices, (*notes, *images.notes))


def _text(table: TableColumns, column: str, row: int) -> str:
    """Return a cell as text; '' where there is none."""
    cell = table.columns[column][row] if column in table.columns else None
    return "" if cell is None else str(cell)


def _number(table: TableColumns, row: int, column: str) -> float:
    cell = _text(table, column, row)
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        what = f"'{cell}', which is no number" if cell else "missing"
        raise DataError(f"{table.name}, {table.row_name(row)}: {column} is {what}")
    return value


def _choice(table: TableColumns, row: int) -> int | None:
    """Return 0 for left and 1 for right; None for equal votes."""
    word = _text(table, "choice", row).lower()
    if word in SIDES:
        return SIDES.index(word)
    if word or "left_vote" not in table.columns:
        what = f"'{word}', which is neither left nor right" if word else "missing"
        raise DataError(f"{table.name}, {table.row_name(row)}: the choice is {what}")
    left, right = (_number(table, row, f"{side}_vote") for side in SIDES)
    return None if left == right else int(right > left)


FORMAT = SourceFormat(
    __doc__,
    readers={Triplets: Reader(recognises, open, TripletOptions, unresolved=lambda spec: spec.startswith(PREFIX))},
)
