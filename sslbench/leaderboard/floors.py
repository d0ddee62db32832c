"""Floor rows at the bottom of a board: chance, majority class, those of single protocols, pixels, untrained nets."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from sslbench.leaderboard.grouping import ColumnKey
from sslbench.leaderboard.model import Cell, Column, Row
from sslbench.metrics.catalog import find
from sslbench.results import MetricValue, Result

_ORDER = ("chance", "majority", "", "pixels", "untrained")
_FloorValues = dict[int, dict[str, float]]  # position of the column -> metric -> value


def floor_rows(
    measured: Sequence[Row], results: Sequence[Result], columns: Sequence[Column], groups: Mapping[str, ColumnKey]
) -> list[Row]:
    """Return the floor rows: floors with a record of their own, and floors that other records state.

    Of different values that the results of one column state for a floor, the best counts: rows should be above it.

    Args:
        measured: rows of the floors' own records, with intervals.
        results: all records of the board.
        columns: columns of the board.
        groups: id of each record -> the group of its column.
    """
    measured_cells = {
        (*_kind(row.weights, row.backbone), i) for row in measured for i, cell in enumerate(row.cells) if cell
    }
    named: dict[tuple[str, str], _FloorValues] = defaultdict(lambda: defaultdict(dict))
    positions = {column.group: i for i, column in enumerate(columns)}
    for result in results:
        position = positions[groups[result.id]]
        for floor, values in result.floors.items():
            kind = _kind(floor, result.weights.backbone)
            if (*kind, position) in measured_cells:
                continue
            cell = named[kind][position]
            for name, value in values.items():
                if value is not None:
                    better = min if find(name).sign < 0 else max
                    cell[name] = better(value, cell.get(name, value))
    rows = [_row(kind, values, len(columns)) for kind, values in named.items() if any(values.values())]
    return sorted([*measured, *rows], key=_place)


def _kind(name: str, backbone: str) -> tuple[str, str]:
    """Return the floor and, for an untrained one, the backbone."""
    if name.partition(":")[0] == "pixels":
        return "pixels", ""
    return ("untrained", backbone) if name.endswith("untrained") else (name, "")


def _place(row: Row) -> tuple[int, str, str]:
    """Return the place of a floor among the others: those that only some protocols state stand in the middle."""
    floor = _kind(row.weights, "")[0]
    return _ORDER.index(floor if floor in _ORDER else ""), row.label, row.layer


def _row(kind: tuple[str, str], cells: _FloorValues, n_columns: int) -> Row:
    floor, backbone = kind
    return Row(
        label=f"{backbone} untrained" if backbone else floor,
        weights=floor,
        backbone=backbone,
        flags=("floor",),
        floor=True,
        cells=tuple(
            Cell({name: MetricValue(value=value) for name, value in cells[i].items()}) if cells.get(i) else None
            for i in range(n_columns)
        ),
    )
