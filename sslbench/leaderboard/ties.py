"""Which rows cannot be told from the best one: paired test on the same test samples."""

import dataclasses
from collections.abc import Sequence

from sslbench.errors import ResultError
from sslbench.leaderboard.compare import RESAMPLES, Scored, compare_all
from sslbench.leaderboard.model import Cell, Column, Row, value
from sslbench.metrics.metric import direction
from sslbench.results.records import read_scores, scores_path

_FEWER = 300  # resamples for metrics that must be computed anew on each: mAP of VOC07 takes a second a row


def mark_best(rows: Sequence[Row], columns: tuple[Column, ...], seed: int) -> list[Row]:
    """The rows with the best cell of each column marked, and the cells that are tied with it."""
    cells = [list(row.cells) for row in rows]
    for position, column in enumerate(columns):
        known = {i: v for i, row in enumerate(rows) if (v := value(row, position, columns)) is not None}
        sign = direction(column.metric)
        if not known or sign == 0:
            continue
        best = max(known, key=lambda i: sign * known[i])
        champion = _scores(rows[best].cells[position]) if len(known) > 1 else []
        for i, v in known.items():
            cell = cells[i][position]
            if cell is not None:
                tied = True if i == best else tie(champion, _scores(cell), column.metric, seed)
                cells[i][position] = dataclasses.replace(cell, best=v == known[best], tied=tied)
    return [dataclasses.replace(row, cells=tuple(changed)) for row, changed in zip(rows, cells, strict=True)]


def _scores(cell: Cell | None) -> list[Scored]:
    """All records of a cell (one per seed) with their per-sample scores; none where one of them has no scores."""
    paths = [(record, scores_path(record)) for record in cell.records] if cell is not None else []
    known = [(record, read_scores(path)) for record, path in paths if path is not None]
    return known if len(known) == len(paths) else []


def tie(best: Sequence[Scored], other: Sequence[Scored], metric: str, seed: int) -> bool | None:
    """True if the 95 % interval of the paired difference between two rows holds 0, as `compare` says it of two results.

    None where that cannot be said: the scores of one are not there, they are not of the same samples, or the metric
    cannot be computed from them.
    """
    if not best or not other:
        return None
    resamples = RESAMPLES if metric in ("top1", "top5") else _FEWER
    try:
        found = compare_all(best, other, metric, seed=seed, resamples=resamples)
    except ResultError:
        return None
    return None if found.verdict == "not computable" else found.verdict == "tied"
