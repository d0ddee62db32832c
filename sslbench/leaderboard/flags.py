"""Flags on rows with doubtful or special numbers."""

from collections import defaultdict
from collections.abc import Sequence

from sslbench.leaderboard.grouping import seeds_of
from sslbench.leaderboard.model import Cell, Column
from sslbench.metrics.catalog import find
from sslbench.results import Result

_LEARNED = 90.0  # train accuracy in percent below which an unconverged probe is underfitted
_OVERLAP = 0.01  # share of the test images; smaller overlaps hardly change a number and appear only in its provenance


def row_flags(members: Sequence[Result], columns: Sequence[Column], cells: Sequence[Cell | None]) -> tuple[str, ...]:
    """Return the flags of a row; one that does not hold for all its numbers names the columns."""
    flags = ["floor"] if is_floor(members[0]) else []
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


def is_floor(result: Result) -> bool:
    """Return whether a record is itself a floor: an untrained backbone, or the images' own pixels."""
    return result.weights.untrained or result.weights.backbone.partition(":")[0] == "pixels"


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
    if floors and value is not None and sign * value <= max(sign * f for f in floors) and not is_floor(cell.records[0]):
        flags.append("not above untrained")
    if any(underfitted(record) for record in cell.records if record.headline == metric):
        flags.append("underfitted")
    seeds = [seed for record in cell.records for seed in seeds_of(record)]
    if len(seeds) > 1:
        flags.append(f"mean of {len(seeds)} seeds")
    return flags
