"""Ties with the best row of a column, by a paired test on the same test samples."""

import dataclasses
from collections.abc import Sequence

from sslbench.errors import ResultError
from sslbench.leaderboard.compare import RESAMPLES, Scored, compare_all
from sslbench.leaderboard.model import Cell, Column, Row, value
from sslbench.metrics.catalog import find
from sslbench.metrics.differences import TOP_K
from sslbench.results.records import read_scores, scores_path

_FEWER = 300  # number of half-samples for metrics without a closed form: mAP on VOC07 takes a second per row


def mark_best(rows: Sequence[Row], columns: tuple[Column, ...], seed: int) -> list[Row]:
    """Return the rows with the best cell of each column marked, and the cells that are tied with it."""
    cells = [list(row.cells) for row in rows]
    for position, column in enumerate(columns):
        numbers = {i: v for i, row in enumerate(rows) if (v := value(row, position, columns)) is not None}
        direction = find(column.metric).direction
        if not numbers or direction == 0:
            continue
        best = max(numbers, key=lambda i: direction * numbers[i])
        champion = _scores(rows[best].cells[position]) if len(numbers) > 1 else []
        for i, v in numbers.items():
            cell = cells[i][position]
            if cell is not None:
                tied = True if i == best else tie(champion, _scores(cell), column.metric, seed)
                cells[i][position] = dataclasses.replace(cell, best=v == numbers[best], tied=tied)
    return [dataclasses.replace(row, cells=tuple(changed)) for row, changed in zip(rows, cells, strict=True)]


def _scores(cell: Cell | None) -> list[Scored]:
    """Return all records of a cell (one per seed) with per-sample scores; none where one of them has no scores."""
    paths = [(record, scores_path(record)) for record in cell.records] if cell is not None else []
    scores = [(record, read_scores(path)) for record, path in paths if path is not None]
    return scores if len(scores) == len(paths) else []


def tie(best: Sequence[Scored], other: Sequence[Scored], metric: str, seed: int) -> bool | None:
    """Return whether the 95 % interval of the paired difference between two rows covers 0, as in `compare`.

    None where it cannot be computed: scores are missing or of other samples, or the metric needs more than scores.
    """
    if not best or not other:
        return None
    resamples = RESAMPLES if metric in TOP_K else _FEWER
    try:
        found = compare_all(best, other, metric, seed=seed, resamples=resamples)
    except ResultError:
        return None
    return None if found.verdict == "not computable" else found.verdict == "tied"
