"""Floor rows at the bottom of a board: chance, majority class, position, raw pixels and untrained backbones."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from sslbench.leaderboard.grouping import ColumnKey
from sslbench.leaderboard.model import Cell, Column, Row
from sslbench.metrics.catalog import find
from sslbench.results import MetricValue, Result

_WITHOUT_IMAGES = ("chance", "majority", "position only")
_ORDER = (*_WITHOUT_IMAGES, "pixels", "untrained")
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
    return sorted([*measured, *rows], key=lambda row: (_ORDER.index(_kind(row.weights, "")[0]), row.label, row.layer))


def _kind(name: str, backbone: str) -> tuple[str, str]:
    """Return the floor and, for an untrained one, the backbone."""
    if name in _WITHOUT_IMAGES:
        return name, ""
    return ("pixels", "") if name.partition(":")[0] == "pixels" else ("untrained", backbone)


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
