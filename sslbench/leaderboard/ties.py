"""Which rows cannot be told from the best one: paired test on the same test samples."""

import dataclasses
from collections.abc import Sequence

from sslbench.errors import ResultError
from sslbench.leaderboard.compare import RESAMPLES, compare_scores
from sslbench.leaderboard.model import Cell, Column, Row, direction, value
from sslbench.records import Scores, read_scores, scores_path
from sslbench.results import Result

_FEWER = 300  # resamples for metrics that must be computed anew on each: mAP of VOC07 takes a second a row

_Scored = tuple[Result, Scores]


def mark_best(rows: Sequence[Row], columns: tuple[Column, ...], seed: int) -> list[Row]:
    """The rows with the best cell of each column marked, and the cells that are tied with it."""
    cells = [list(row.cells) for row in rows]
    for position, column in enumerate(columns):
        known = {i: v for i, row in enumerate(rows) if (v := value(row, position, columns)) is not None}
        sign = direction(column.metric)
        if not known or sign == 0:
            continue
        best = max(known, key=lambda i: sign * known[i])
        champion = _scores(rows[best].cells[position]) if len(known) > 1 else None
        for i, v in known.items():
            cell = cells[i][position]
            if cell is not None:
                tied = True if i == best else tie(champion, _scores(cell), column.metric, seed)
                cells[i][position] = dataclasses.replace(cell, best=v == known[best], tied=tied)
    return [dataclasses.replace(row, cells=tuple(changed)) for row, changed in zip(rows, cells, strict=True)]


def _scores(cell: Cell | None) -> _Scored | None:
    """A cell's record (of its first seed) and its per-sample scores, where there are any."""
    if cell is None or not cell.records:
        return None
    first = cell.records[0]
    path = scores_path(first)
    return None if path is None else (first, read_scores(path))


def tie(best: _Scored | None, other: _Scored | None, metric: str, seed: int) -> bool | None:
    """True if the 95 % interval of the paired difference between two results holds 0, as `compare` says it.

    None where that cannot be said: the scores of one are not there, they are not of the same samples, or the metric
    cannot be computed from them.
    """
    if best is None or other is None:
        return None
    resamples = RESAMPLES if metric in ("top1", "top5") else _FEWER
    try:
        found = compare_scores(best[0], other[0], best[1], other[1], metric, seed=seed, resamples=resamples)
    except ResultError:
        return None
    return None if found.verdict == "not computable" else found.verdict == "tied"
