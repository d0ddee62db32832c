"""Which rows cannot be told from the best one: paired test on the same test samples."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sslbench.leaderboard.model import HIGHER_IS_BETTER, Cell, Column, Row, value
from sslbench.metrics.intervals import paired_difference
from sslbench.records import Scores, read_scores, scores_path
from sslbench.results import Result


def mark_best(rows: Sequence[Row], columns: tuple[Column, ...], seed: int) -> list[Row]:
    """The rows with the best cell of each column marked, and the cells that are tied with it."""
    cells = [list(row.cells) for row in rows]
    for position, column in enumerate(columns):
        known = {i: v for i, row in enumerate(rows) if (v := value(row, position, columns)) is not None}
        if not known or column.metric not in HIGHER_IS_BETTER:
            continue
        best = max(known, key=lambda i: known[i])
        champion = _scores(rows[best].cells[position], column.metric) if len(known) > 1 else None
        for i, v in known.items():
            cell = cells[i][position]
            if cell is not None:
                tied = True if i == best else tie(champion, _scores(cell, column.metric), column.metric, seed)
                cells[i][position] = dataclasses.replace(cell, best=v == known[best], tied=tied)
    return [dataclasses.replace(row, cells=tuple(changed)) for row, changed in zip(rows, cells, strict=True)]


def _scores(cell: Cell | None, metric: str) -> Scores | None:
    """Per-sample scores of a cell (of its first seed), where there are any and the metric is a mean over samples."""
    if cell is None or metric not in ("top1", "top5"):
        return None
    first: Result = cell.records[0]
    path = scores_path(first)
    return None if path is None else read_scores(path)


def tie(best: Scores | None, other: Scores | None, metric: str, seed: int) -> bool | None:
    """True if the 95 % interval of the paired difference between two results holds 0.

    None where that cannot be said: the scores of one are not there, they are not of the same samples, or the metric
    is not a mean over samples (mean average precision).
    """
    if best is None or other is None or best.ids != other.ids or best.classes != other.classes:
        return None
    if best.labels.ndim != 1 or not np.array_equal(best.labels, other.labels):
        return None
    k = int(metric.removeprefix("top"))
    _, low, high = paired_difference(hits(best, k), hits(other, k), seed=seed)
    return bool(low <= 0 <= high)


def hits(scores: Scores, k: int) -> npt.NDArray[np.bool_]:
    """(N,) True where the right class is among the k highest scores (of equal scores the lower class number leads)."""
    right = np.take_along_axis(scores.scores, scores.labels[:, None], axis=1)
    lower = np.arange(scores.scores.shape[1]) < scores.labels[:, None]
    ahead = np.sum((scores.scores > right) | ((scores.scores == right) & lower), axis=1)
    found: npt.NDArray[np.bool_] = ahead < k
    return found
