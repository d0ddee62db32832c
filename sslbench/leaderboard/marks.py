"""Flags on rows with doubtful or special numbers; best cells and those tied with them."""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence

from sslbench.errors import ResultError
from sslbench.leaderboard.compare import (
    RESAMPLES,
    ChangedRecordError,
    Comparison,
    Scored,
    compare_all,
    compare_detectors,
)
from sslbench.leaderboard.model import FLOORS, Cell, Column, FloorTest, Row, seeds_of, value
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
    return (*flags, *_with_columns(concerned, cells))


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
        flags.append(f"{100 * suspected:.1f} % of test suspected to be in train")
    if any(str(record.selected.get("on", "")).startswith("test") for record in cell.records):
        flags.append("selected on test")
    if any(underfitted(record) for record in cell.records if record.headline == metric):
        flags.append("underfitted")
    networks = {record.weights.sha256 for record in cell.records}
    seeds = {seed for record in cell.records for seed in seeds_of(record)}
    if len(networks) > 1:
        flags.append(f"mean of {len(networks)} networks")
    elif len(seeds) > 1:
        flags.append(f"mean of {len(seeds)} seeds")
    return flags


def mark_best(rows: Sequence[Row], columns: tuple[Column, ...], seed: int) -> tuple[list[Row], list[str]]:
    """Mark the best cell of each column, and the cells that are tied with it; a lone row is not called best."""
    cells = [list(row.cells) for row in rows]
    notes: list[str] = []
    for position, column in enumerate(columns):
        numbers = {i: v for i, row in enumerate(rows) if (v := value(row, position, columns)) is not None}
        direction = find(column.metric).direction
        if not numbers or direction == 0:
            continue
        best = max(numbers, key=lambda i: direction * numbers[i])
        leading = _Paired(rows[best].cells[position], column.metric, seed)
        if len(numbers) == 1:
            leading.check_alone()
            notes += leading.contradicted
            continue
        ties: _Paired | None = leading
        size = sum(_detections_bytes(rows[i].cells[position]) for i in numbers)
        if size > _DETECTIONS_BYTES:
            ties = None
            notes.append(
                f"{column.name}: no ties are marked, since {size / 1e6:,.0f} MB of detections would take minutes; "
                "sslbench compare tests two of the records."
            )
        for i, v in numbers.items():
            cell = cells[i][position]
            if cell is not None:
                found = None if ties is None or i == best else ties.with_other(cell)
                tied = True if i == best else None if found is None else found.verdict == "tied"
                cells[i][position] = dataclasses.replace(cell, best=v == numbers[best], tied=tied)
        notes += [] if ties is None else ties.contradicted
    return [dataclasses.replace(row, cells=tuple(changed)) for row, changed in zip(rows, cells, strict=True)], notes


def with_floor_tests(rows: Sequence[Row], floors: Sequence[Row], columns: tuple[Column, ...], seed: int) -> list[Row]:
    """Test every cell of the rows in pairs against its floors, and flag the rows that are not clearly above them."""
    cells = [list(row.cells) for row in rows]
    for position, column in enumerate(columns):
        if find(column.metric).direction == 0:
            continue
        known: dict[tuple[str, ...], _Paired] = {}
        for row, own in zip(rows, cells, strict=True):
            if (cell := own[position]) is not None and value(row, position, columns) is not None:
                tested = {}
                for name in FLOORS:
                    beside = [floor.cells[position] for floor in floors if _is_floor_of(name, floor, row)]
                    pairs = [_of_seeds(each, cell, column.metric, seed, known) for each in beside if each is not None]
                    if (test := _against(name, cell, column.metric, pairs)) is not None:
                        tested[name] = test
                own[position] = dataclasses.replace(cell, floors=tested)
    return [
        dataclasses.replace(row, cells=tuple(own), flags=(*row.flags, *_floor_flags(own, columns)))
        for row, own in zip(rows, cells, strict=True)
    ]


def _of_seeds(floor: Cell, cell: Cell, metric: str, seed: int, known: "dict[tuple[str, ...], _Paired]") -> "_Paired":
    """Return the tests against a floor's records with the seeds of a cell; against all where it has none of them."""
    seeds = {record.seed for record in cell.records}
    own = tuple(record for record in floor.records if record.seed in seeds) or floor.records
    key = tuple(record.id for record in own)
    if key not in known:
        known[key] = _Paired(dataclasses.replace(floor, records=own), metric, seed)
    return known[key]


def _against(name: str, cell: Cell, metric: str, tests: "Sequence[_Paired]") -> FloorTest | None:
    """Return the test of a cell against one of its floors; None where it has no such floor."""
    sign, own = find(metric).sign, cell.metrics[metric].value
    measured = [(value, test) for test in tests if (value := test.mean()) is not None]
    stated = [v for record in cell.records if (v := record.floors.get(name, {}).get(metric)) is not None]
    if own is None or not (measured or stated):
        return None
    # Of several floors (pixels of two sizes), the best counts.
    level = sign * max(sign * v for v in ([v for v, _ in measured] or stated))
    if sign * own <= sign * level:
        return FloorTest(level, above=False)
    found = [test.with_other(cell) for _, test in measured]
    better = [None if each is None else each.verdict == "B better" for each in found]
    return FloorTest(level, above=None if not better or None in better else all(better))


def _is_floor_of(name: str, floor: Row, row: Row) -> bool:
    """Return whether a floor's row is the floor of that name for a row of results."""
    if floor.weights.partition(":")[0] == "pixels" or floor.backbone.partition(":")[0] == "pixels":
        return name == "pixels"
    alike = ("backbone", "layer", "preprocessing", "precision")
    return name == "untrained" and all(getattr(floor, key) == getattr(row, key) for key in alike)


def _floor_flags(cells: Sequence[Cell | None], columns: Sequence[Column]) -> list[str]:
    concerned = {
        f"not clearly above {name}": [
            column.name
            for column, cell in zip(columns, cells, strict=True)
            if cell is not None and name in cell.floors and cell.floors[name].above is False
        ]
        for name in FLOORS
    }
    return _with_columns(concerned, cells)


def _with_columns(concerned: Mapping[str, Sequence[str]], cells: Sequence[Cell | None]) -> list[str]:
    """Return the flags of a row; one that does not hold for all its numbers names the columns."""
    filled = sum(cell is not None for cell in cells)
    return [
        flag if len(names) == filled else f"{flag}: {', '.join(names)}" for flag, names in concerned.items() if names
    ]


class _Paired:
    """Paired tests of cells against one cell of the same column, whose scores are read once."""

    def __init__(self, cell: Cell | None, metric: str, seed: int) -> None:
        self.cell, self.metric, self.seed = cell, metric, seed
        self.scores: list[Scored] | None = None
        self.contradicted: dict[str, None] = {}

    def mean(self) -> float | None:
        """Return the mean of the metric over the records of the first cell; None where one has none."""
        records = () if self.cell is None else self.cell.records
        values = [r.metrics[self.metric].value for r in records if self.metric in r.metrics]
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known and len(known) == len(records) else None

    def check_alone(self) -> None:
        """Check that the scores of the only cell give its value; detections, which take long, are not read."""
        if self._own_scores():
            try:
                compare_all(self._own_scores(), self._own_scores(), self.metric, seed=self.seed, resamples=2)
            except ChangedRecordError as error:
                self.contradicted[f"{error.message}."] = None
            except ResultError:
                pass

    def with_other(self, cell: Cell) -> Comparison | None:
        """Return the paired difference of the first cell and another one, as in `compare`.

        None where it cannot be computed: scores are missing or of other samples, or the metric needs more than scores.
        """
        try:
            if self.cell is not None and _detections_bytes(self.cell) and _detections_bytes(cell):
                found = compare_detectors(
                    self.cell.records, cell.records, self.metric, seed=self.seed, resamples=_OF_DETECTORS
                )
            elif self._own_scores() and (other := scores_of(cell)):
                resamples = RESAMPLES if self.metric in TOP_K else _FEWER
                found = compare_all(self._own_scores(), other, self.metric, seed=self.seed, resamples=resamples)
            else:
                return None
        except ChangedRecordError as error:
            self.contradicted[f"{error.message}."] = None
            return None
        except ResultError:
            return None
        return None if found.verdict == "not computable" else found

    def _own_scores(self) -> list[Scored]:
        if self.scores is None:
            self.scores = scores_of(self.cell)
        return self.scores


def scores_of(cell: Cell | None) -> list[Scored]:
    """Return all records of a cell (one per seed) with per-sample scores; none where one of them has no scores."""
    paths = [(record, scores_path(record)) for record in cell.records] if cell is not None else []
    scores = [(record, read_scores(path)) for record, path in paths if path is not None]
    return scores if len(scores) == len(paths) else []


def _detections_bytes(cell: Cell | None) -> int:
    """Return the size of all files of detections of a cell; 0 where it has none, or where one is missing."""
    records = [record for record in cell.records if record.objects_file is not None] if cell is not None else []
    paths = [path for record in records for path in predictions_paths(record).values()]
    return sum(path.stat().st_size for path in paths) if all(path.is_file() for path in paths) else 0
