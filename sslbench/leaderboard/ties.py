"""Ties with the best row of a column, by a paired test on the same test samples."""

import dataclasses
from collections.abc import Sequence

from sslbench.errors import ResultError
from sslbench.leaderboard.compare import RESAMPLES, ChangedRecordError, Scored, compare_all, compare_detectors
from sslbench.leaderboard.model import Cell, Column, Row, value
from sslbench.metrics.catalog import find
from sslbench.metrics.differences import TOP_K
from sslbench.results.records import predictions_paths, read_scores, scores_path

_FEWER = 300  # number of half-samples for metrics without a closed form: mAP on VOC07 takes a second per row
_OF_DETECTORS = 100  # resamples: detectors on COCO's 5,000 images take half a minute; the standard error is within 7 %
_DETECTIONS_BYTES = 400 * 10**6
"""Size of the files of detections of one column above which its ties are not looked for: a few minutes."""


def mark_best(rows: Sequence[Row], columns: tuple[Column, ...], seed: int) -> tuple[list[Row], list[str]]:
    """Mark the best cell of each column, and the cells that are tied with it.

    Args:
        rows: rows of a board.
        columns: its columns.
        seed: seed of the resamples.

    Returns:
        The rows, a note for each column with too many detections to look for ties, and one for each record that is
        contradicted by its scores.
    """
    cells = [list(row.cells) for row in rows]
    notes = []
    for position, column in enumerate(columns):
        numbers = {i: v for i, row in enumerate(rows) if (v := value(row, position, columns)) is not None}
        direction = find(column.metric).direction
        if not numbers or direction == 0:
            continue
        best = max(numbers, key=lambda i: direction * numbers[i])
        ties: _Ties | None = _Ties(rows[best].cells[position], column.metric, seed)
        size = sum(_detections_bytes(rows[i].cells[position]) for i in numbers) if len(numbers) > 1 else 0
        if len(numbers) == 1 and ties is not None:
            ties.check_alone()
        if size > _DETECTIONS_BYTES:
            ties = None
            notes.append(
                f"{column.name}: no ties are marked, since {size / 1e6:,.0f} MB of detections would take minutes; "
                "sslbench compare tests two of the records."
            )
        for i, v in numbers.items():
            cell = cells[i][position]
            if cell is not None:
                tied = True if i == best else None if ties is None else ties.with_best(cell)
                cells[i][position] = dataclasses.replace(cell, best=v == numbers[best], tied=tied)
        notes += [] if ties is None else ties.contradicted
    return [dataclasses.replace(row, cells=tuple(changed)) for row, changed in zip(rows, cells, strict=True)], notes


class _Ties:
    """Ties with the best cell of one column, whose scores are read once."""

    def __init__(self, best: Cell | None, metric: str, seed: int) -> None:
        self.best, self.metric, self.seed = best, metric, seed
        self.scores = _scores(best)
        self.contradicted: dict[str, None] = {}

    def check_alone(self) -> None:
        """Check that the scores of the only cell give its value; detections, which take long, are not read."""
        if self.scores:
            try:
                compare_all(self.scores, self.scores, self.metric, seed=self.seed, resamples=2)
            except ChangedRecordError as error:
                self.contradicted[f"{error.message}."] = None
            except ResultError:
                pass

    def with_best(self, cell: Cell) -> bool | None:
        """Return whether the 95 % interval of the paired difference between the two covers 0, as in `compare`.

        None where it cannot be computed: scores are missing or of other samples, or the metric needs more than scores.
        """
        try:
            if self.best is not None and _detections_bytes(self.best) and _detections_bytes(cell):
                found = compare_detectors(
                    self.best.records, cell.records, self.metric, seed=self.seed, resamples=_OF_DETECTORS
                )
            elif self.scores and (other := _scores(cell)):
                resamples = RESAMPLES if self.metric in TOP_K else _FEWER
                found = compare_all(self.scores, other, self.metric, seed=self.seed, resamples=resamples)
            else:
                return None
        except ChangedRecordError as error:
            self.contradicted[f"{error.message}."] = None
            return None
        except ResultError:
            return None
        return None if found.verdict == "not computable" else found.verdict == "tied"


def _scores(cell: Cell | None) -> list[Scored]:
    """Return all records of a cell (one per seed) with per-sample scores; none where one of them has no scores."""
    paths = [(record, scores_path(record)) for record in cell.records] if cell is not None else []
    scores = [(record, read_scores(path)) for record, path in paths if path is not None]
    return scores if len(scores) == len(paths) else []


def _detections_bytes(cell: Cell | None) -> int:
    """Return the size of all files of detections of a cell; 0 where it has none, or where one is missing."""
    records = [record for record in cell.records if record.objects_file is not None] if cell is not None else []
    paths = [path for record in records for path in predictions_paths(record).values()]
    return sum(path.stat().st_size for path in paths) if all(path.is_file() for path in paths) else 0
