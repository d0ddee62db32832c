"""Flags on rows with doubtful or special numbers; best cells and those tied with them."""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence

from sslbench.errors import ResultError
from sslbench.leaderboard.compare import RESAMPLES, ChangedRecordError, Scored, compare_all, compare_detectors
from sslbench.leaderboard.model import Cell, Column, Row, seeds_of, value
from sslbench.metrics.catalog import find
from sslbench.metrics.differences import TOP_K
from sslbench.results import Result
from sslbench.results.records import predictions_paths, read_scores, scores_path

_LEARNED = 90.0  # train accuracy in percent below which an unconverged probe is underfitted
_OVERLAP = 0.01  # share of the test images; smaller overlaps hardly change a number and appear only in its provenance
_FEWER = 300  # number of half-samples for metrics without a closed form: mAP on VOC07 takes a second per row
_OF_DETECTORS = 100  # resamples: detectors on COCO's 5,000 images take half a minute; the standard error is within 7 %
_DETECTIONS_BYTES = 400 * 10**6
"""Size of the files of detections of one column above which its ties are not looked for: a few minutes."""


def row_flags(members: Sequence[Result], columns: Sequence[Column], cells: Sequence[Cell | None]) -> tuple[str, ...]:
    """Return the flags of a row; one that does not hold for all its numbers names the columns."""
    flags = ["floor"] if members[0].is_floor else []
    weights = members[0].weights
    if weights.partial:
        flags.append(f"partial weights ({weights.loaded} of {weights.total} tensors)")
    if members[0].precision == "int8":
        flags.append("features rounded to int8")
    concerned: dict[str, list[str]] = defaultdict(list)
    for column, cell in zip(columns, cells, strict=True):
        for flag in cell_flags(cell, column.metric) if cell is not None else ():
            concerned[flag].append(column.name)
    filled = sum(cell is not None for cell in cells)
    flags += [flag if len(names) == filled else f"{flag}: {', '.join(names)}" for flag, names in concerned.items()]
    return tuple(flags)


def underfitted(result: Result) -> bool:
    """Return whether the probe has not learned train: its score on train is below the whole interval of test.

    Or its solver stopped early and it misses every tenth training sample. With label noise the score on train counts
    the wrong labels, so it says nothing.
    """
    low = result.metrics[result.headline].low
    if result.train is None or result.data.label_noise or find(result.headline).direction <= 0:
        return False
    return (low is not None and result.train < low) or (result.converged is False and result.train < _LEARNED)


def cell_flags(cell: Cell, metric: str) -> list[str]:
    """Return the flags of one number."""
    flags = []
    if any(record.converged is False for record in cell.records):
        flags.append("not converged")
    if any(record.benchmark is not None and record.benchmark.modified for record in cell.records):
        flags.append("modified")
    presets = [record.preset for record in cell.records if record.preset is not None]
    flags += sorted({f"preset {preset.name} modified" for preset in presets if preset.modified})
    part = cell.records[0].data
    if part.unreadable or part.train.n_used < part.train.n or part.test.n_used < part.test.n:
        used = f"{part.train.n_used} of {part.train.n} train, {part.test.n_used} of {part.test.n} test"
        flags.append(f"skipped images ({used})")
    suspected = max((r.overlaps.n / max(r.data.test.n_used, 1) for r in cell.records if r.overlaps), default=0.0)
    if suspected >= _OVERLAP:
        flags.append(f"{suspected:.1%} of test suspected to be in train")
    if any(str(record.selected.get("on", "")).startswith("test") for record in cell.records):
        flags.append("selected on test")
    floor = [record.floors.get("untrained", {}).get(metric) for record in cell.records]
    floors, value = [f for f in floor if f is not None], cell.metrics[metric].value
    sign = find(metric).sign
    if floors and value is not None and sign * value <= max(sign * f for f in floors) and not cell.records[0].is_floor:
        flags.append("not above untrained")
    if any(underfitted(record) for record in cell.records if record.headline == metric):
        flags.append("underfitted")
    seeds = [seed for record in cell.records for seed in seeds_of(record)]
    if len(seeds) > 1:
        flags.append(f"mean of {len(seeds)} seeds")
    return flags


def mark_best(rows: Sequence[Row], columns: tuple[Column, ...], seed: int) -> tuple[list[Row], list[str]]:
    """Mark the best cell of each column, and the cells that are tied with it."""
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
