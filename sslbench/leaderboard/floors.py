"""The rows below the line: what chance, the majority class, raw pixels and an untrained backbone score."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from sslbench.leaderboard.grouping import Group
from sslbench.leaderboard.model import Cell, Column, Row
from sslbench.metrics.metric import direction
from sslbench.results import Metric, Result

_ORDER = ("chance", "majority", "pixels", "untrained")
_Values = dict[int, dict[str, float]]  # position of the column -> metric -> value


def floor_rows(
    measured: Sequence[Row], results: Sequence[Result], columns: Sequence[Column], groups: Mapping[str, Group]
) -> list[Row]:
    """The rows at the bottom: floors that have a record of their own, and those that are only named in other records.

    Where results of one column name different values for a floor, the best counts: it is the one to be above.

    Args:
        measured: rows made from the floors' own records (they have intervals).
        results: all records of the board.
        columns: of the board.
        groups: id of each record -> the group of its column.
    """
    have = {(*_kind(row.weights, row.backbone), i) for row in measured for i, cell in enumerate(row.cells) if cell}
    named: dict[tuple[str, str], _Values] = defaultdict(lambda: defaultdict(dict))
    positions = {column.group: i for i, column in enumerate(columns)}
    for result in results:
        position = positions[groups[result.id]]
        for floor, values in result.floors.items():
            kind = _kind(floor, result.weights.backbone)
            if (*kind, position) in have:
                continue
            cell = named[kind][position]
            for name, value in values.items():
                if value is not None:
                    better = min if direction(name) < 0 else max
                    cell[name] = better(value, cell.get(name, value))
    rows = [_row(kind, values, len(columns)) for kind, values in named.items() if any(values.values())]
    return sorted([*measured, *rows], key=lambda row: (_ORDER.index(_kind(row.weights, "")[0]), row.label, row.layer))


def _kind(name: str, backbone: str) -> tuple[str, str]:
    """Which floor it is and, where that matters, of which backbone."""
    if name in ("chance", "majority"):
        return name, ""
    return ("pixels", "") if name.partition(":")[0] == "pixels" else ("untrained", backbone)


def _row(kind: tuple[str, str], cells: _Values, n_columns: int) -> Row:
    floor, backbone = kind
    return Row(
        label=f"{backbone} untrained" if backbone else floor,
        weights=floor,
        backbone=backbone,
        flags=("floor",),
        floor=True,
        cells=tuple(
            Cell({name: Metric(value=value) for name, value in cells[i].items()}) if cells.get(i) else None
            for i in range(n_columns)
        ),
    )
