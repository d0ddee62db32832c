"""Table of the missing cells of a suite, beside the records."""

import csv
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from sslbench.errors import ResultError
from sslbench.locks import lock
from sslbench.paths import not_written
from sslbench.results.records import replace_file
from sslbench.text import csv_text, plain_cell

HOLES = "holes.csv"
"""Name of the file in a folder of results."""


@dataclasses.dataclass(frozen=True)
class Hole:
    """Missing cell, weights on a benchmark, with the reason and the remedy."""

    weights: str
    benchmark: str
    reason: str
    remedy: str = ""


def write(folder: Path, cells: Sequence[tuple[str, str]], holes: Sequence[Hole]) -> None:
    """Write the holes of the evaluated cells; holes of other cells stay in the file.

    `cells`: (weights, benchmark) of every evaluated cell.
    """
    if not holes and not (folder / HOLES).is_file():
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f".{HOLES}.lock").open("w") as handle:  # jobs of an array write into one folder
            lock(handle)
            kept = [hole for hole in read(folder) if (hole.weights, hole.benchmark) not in set(cells)]
            path, head = folder / HOLES, [field.name for field in dataclasses.fields(Hole)]
            text = csv_text([head, *(dataclasses.astuple(hole) for hole in (*kept, *holes))])
            if kept or holes:
                replace_file(path, text.encode())
            else:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise ResultError(not_written(folder / HOLES, error)) from error


def texts(holes: Sequence[Hole]) -> dict[str, str]:
    """Return 'weights on benchmarks: reason' -> remedy, one for all weights that fail alike on the same benchmarks.

    >>> texts([Hole("a.pth", "knn", "no such file"), Hole("a.pth", "linear", "no such file")])
    {'a.pth on knn, linear: no such file': ''}
    >>> texts([Hole("a.pth", "knn", "no images"), Hole("b.pth", "knn", "no images")])
    {'a.pth, b.pth on knn: no images': ''}
    """
    benchmarks: dict[tuple[str, str, str], list[str]] = {}
    for hole in holes:
        benchmarks.setdefault((hole.weights, hole.reason, hole.remedy), []).append(hole.benchmark)
    alike: dict[tuple[str, str, str], list[str]] = {}
    for (weights, reason, remedy), on in benchmarks.items():
        alike.setdefault((", ".join(on), reason, remedy), []).append(weights)
    return {f"{', '.join(weights)} on {on}: {reason}": remedy for (on, reason, remedy), weights in alike.items()}


def read(folder: Path) -> list[Hole]:
    """Return the holes in a folder of results; none if it has no `holes.csv`."""
    path = folder / HOLES
    if not path.is_file():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [Hole(**{key: plain_cell(cell) for key, cell in row.items()}) for row in csv.DictReader(file)]
    except (OSError, ValueError, TypeError, AttributeError, csv.Error) as error:
        raise ResultError(
            f"{path} is damaged: {error}", "Remove it: `sslbench eval --suite` writes it again."
        ) from error
