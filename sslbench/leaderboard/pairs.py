"""Paired differences between the rows of a board, column by column."""

import dataclasses
import math
from collections.abc import Mapping

from sslbench.arrays import FloatArray
from sslbench.errors import ResultError
from sslbench.leaderboard.compare import Scored, compare_all, same_samples, sample_values
from sslbench.leaderboard.marks import scores_of
from sslbench.leaderboard.model import Board, value
from sslbench.metrics.catalog import find
from sslbench.metrics.differences import difference_of_means
from sslbench.metrics.intervals import Interval
from sslbench.results.records import Scores

MOST_ROWS = 60
"""Rows of a column above which the best one alone is compared with the others: pairs grow with the square."""
_MOST_VALUES = 20_000_000  # samples of all pairs of a column above which the same holds: some seconds
_RESAMPLES = 300  # half-samples for metrics that are no means over samples


@dataclasses.dataclass(frozen=True)
class Differences:
    """Paired differences of one column.

    Attributes:
        found: (row, row) -> first minus second with its 95 % interval, in the unit of the column; the first row is the
            upper one of the board.
        of: the pairs, in words.
    """

    found: Mapping[tuple[int, int], Interval]
    of: str

    def between(self, row: int, other: int) -> Interval | None:
        """Return row minus other with its interval; None where the two were not compared."""
        if (row, other) in self.found:
            return self.found[row, other]
        turned = self.found.get((other, row))
        return None if turned is None else (-turned[0], -turned[2], -turned[1])


def differences(board: Board) -> list[Differences]:
    """Return the paired differences of each column: of all pairs of rows, or of all rows to the best one."""
    return [_of_column(board, position) for position in range(len(board.columns))]


def _of_column(board: Board, position: int) -> Differences:
    column = board.columns[position]
    cells = {
        i: cell
        for i, row in enumerate(board.rows)
        if (cell := row.cells[position]) is not None and value(row, position, board.columns) is not None
    }
    best = next((i for i, cell in cells.items() if cell.best), None)
    order = sorted(cells, key=lambda i: (i != best, i))  # all are compared on the samples of the first with scores
    vectors: dict[int, list[tuple[str, FloatArray]]] = {}
    first: Scores | None = None
    found: dict[tuple[int, int], Interval] = {}
    leading: tuple[int, list[Scored]] | None = None
    for i in order:
        try:
            records = scores_of(cells[i])
            if not records or (first is not None and not all(same_samples(first, each) for _, each in records)):
                continue
            first = first or records[0][1]
            if (own := sample_values(records, column.metric)) is not None:
                vectors[i] = own
            elif leading is None:
                leading = i, records
            else:
                one = compare_all(leading[1], records, column.metric, resamples=_RESAMPLES)
                found[leading[0], i] = (one.difference, one.low, one.high)
        except ResultError:
            continue
    scale = find(column.metric).scale
    size = 0 if first is None else len(first.ids)
    several = len(vectors) <= MOST_ROWS and len(vectors) ** 2 / 2 * size <= _MOST_VALUES
    for a in sorted(vectors) if several else [i for i in order if i in vectors][:1]:
        for b in vectors:
            if a < b or (b != a and not several):
                pair = difference_of_means(vectors[a], vectors[b], groups=None if first is None else first.groups)
                found[a, b] = (scale * pair.difference, scale * pair.low, scale * pair.high)
    found = {rows: interval for rows, interval in found.items() if not any(map(math.isnan, interval))}
    if any(record.objects_file is not None for cell in cells.values() for record in cell.records):
        return Differences({}, "none on this page; sslbench compare tests two detectors")
    if not found:
        return Differences({}, "none, as scores of the same samples are missing")
    if not vectors:
        return Differences(found, f"to the best row, as {column.metric} is no mean over samples")
    return Differences(found, "of all pairs" if several else "to the best row, as there are many pairs")
