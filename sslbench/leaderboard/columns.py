"""Names of rows and columns of a board, and columns on request: score on train, costs, run."""

import dataclasses
import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from sslbench.errors import UsageError
from sslbench.identity import digest
from sslbench.leaderboard.model import Board, Cell, ColumnKey, Extra, Row, differences, short_text
from sslbench.names import did_you_mean
from sslbench.preprocessing import IMAGENET_MEAN, IMAGENET_STD
from sslbench.results import Costs, Result, Stage
from sslbench.text import table_cell

if TYPE_CHECKING:
    from rich.table import Table

_FIRST = ("backbone", "precision", "resize", "squash", "crop", "mean", "std")
"""Parts of a label, in the order in which they stand; others follow by name."""
_OPTIONAL = ("resize", "squash", "crop")  # a row without one does without


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptionalColumn:
    """Column on request, computed from records.

    Attributes:
        name: heading in long CSV files.
        heading: heading elsewhere; one per cell stands behind the name of the board's column.
        option: word of `--columns` that shows it.
        of: the records of a row (all its cells), or of each cell (one per seed), that the value is computed from.
        value: function from these records to the number or text; None where it is not known.
        headline_only: True if long CSV files state it for the headline metric only.
    """

    name: str
    heading: str
    option: Literal["train", "costs", "run"]
    of: Literal["row", "cell"]
    value: Callable[[Sequence[Result]], float | str | None]
    headline_only: bool = False


def mean_train(records: Sequence[Result]) -> float | None:
    """Return the headline metric on train, the mean over the seeds; None where one has none."""
    scores = [record.train for record in records if record.train is not None]
    return sum(scores) / len(scores) if scores and len(scores) == len(records) else None


def _backbone_cost(value: Callable[[Costs], float | None]) -> Callable[[Sequence[Result]], float | None]:
    """Return the function to the first known cost of the backbone."""
    return lambda records: next(
        (v for record in records if record.costs is not None and (v := value(record.costs)) is not None), None
    )


def _extraction_cost(value: Callable[[Stage], float | None]) -> Callable[[Sequence[Result]], float | None]:
    """Return the function to the first known cost of extraction, from records that encoded images."""
    # Stored features cost nothing, so that records which reused them state no cost of extraction.
    return _backbone_cost(
        lambda costs: (
            value(costs.stages["extract"])
            if costs.images_per_second is not None and "extract" in costs.stages
            else None
        )
    )


def _protocol_cost(value: Callable[[Stage], float | None]) -> Callable[[Sequence[Result]], float | None]:
    """Return the function to the cost of the protocol, from the first seed."""

    def of_first(records: Sequence[Result]) -> float | None:
        costs = records[0].costs if records else None
        stage = costs.stages.get(records[0].protocol.name) if costs is not None else None
        return None if stage is None else value(stage)

    return of_first


def _cost(
    name: str, heading: str, of: Literal["row", "cell"], value: Callable[[Sequence[Result]], float | None]
) -> OptionalColumn:
    return OptionalColumn(name=name, heading=heading, option="costs", of=of, value=value)


def _run(name: str, value: Callable[[Result], str | None]) -> OptionalColumn:
    """Return the column of a fact about the runs of a row: its values in their order, '; ' between them."""

    def joined(records: Sequence[Result]) -> str | None:
        return "; ".join(sorted({text for record in records if (text := value(record))})) or None

    return OptionalColumn(name=name, heading=name, option="run", of="row", value=joined)


COLUMNS = (
    OptionalColumn(
        name="train_value", heading="train", option="train", of="cell", value=mean_train, headline_only=True
    ),
    _cost("parameters", "parameters", "row", _backbone_cost(lambda costs: costs.parameters)),
    _cost("gflops", "GFLOPs per image", "row", _backbone_cost(lambda costs: costs.gflops)),
    _cost("images_per_second", "images per second", "row", _backbone_cost(lambda costs: costs.images_per_second)),
    _cost("extract_seconds", "extraction seconds", "row", _extraction_cost(lambda stage: stage.seconds)),
    _cost("extract_peak_mib", "extraction peak MiB", "row", _extraction_cost(lambda stage: stage.ram_mib)),
    _cost("extract_peak_gpu_mib", "extraction peak MiB of the GPU", "row", _extraction_cost(lambda s: s.gpu_mib)),
    _cost("seconds", "seconds", "cell", _protocol_cost(lambda stage: stage.seconds)),
    _cost("peak_mib", "peak MiB", "cell", _protocol_cost(lambda stage: stage.ram_mib)),
    _cost("peak_gpu_mib", "peak MiB of the GPU", "cell", _protocol_cost(lambda stage: stage.gpu_mib)),
    _run("date", lambda record: record.created[:10]),
    _run("by", lambda record: record.by),
    _run("device", lambda record: None if record.hardware is None else record.hardware.device),
)
OPTIONS = tuple(dict.fromkeys(column.option for column in COLUMNS))


def with_extras(board: Board, options: Sequence[str]) -> Board:
    """Return the board with columns on request, which writers show after its own.

    `options`: 'train': the headline metric on train, per column; 'costs': parameters, operations and images per second
    of the backbone, seconds and peak memory of extraction, and of the protocol per column; 'run': date, $SSLBENCH_WHO
    and device.
    """
    for option in options:
        if option not in OPTIONS:
            raise UsageError(f"there are no columns called '{option}'", did_you_mean(option, OPTIONS))
    found: list[Extra] = []
    for option in OPTIONS:
        columns = [column for column in COLUMNS if option in options and column.option == option]
        of_rows = [column for column in columns if column.of == "row"]
        of_row = [[record for cell in row.cells for record in cell_records(cell)] for row in board.rows]
        found += [Extra(c.heading, tuple(c.value(records) for records in of_row)) for c in of_rows]
        found += [
            Extra(f"{column.name} {c.heading}", tuple(c.value(cell_records(row.cells[i])) for row in board.rows))
            for i, column in enumerate(board.columns)
            for c in columns
            if c.of == "cell"
        ]
    shown = tuple(extra for extra in found if any(value is not None for value in extra.values))
    return dataclasses.replace(board, extras=shown)


def cell_records(cell: Cell | None) -> tuple[Result, ...]:
    """Return the records of a cell; none for a hole."""
    return () if cell is None else cell.records


def extra_text(value: float | str | None) -> str:
    """Return the number of a column on request with three digits or more; a text as it is.

    >>> extra_text(23508032), extra_text(8.179), extra_text(None)
    ('23,508,032', '8.18', '')
    """
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def extra_texts(board: Board, row: Row) -> list[str]:
    """Return the columns on request of a row as text."""
    position = next(i for i, other in enumerate(board.rows) if other is row)
    return [extra_text(extra.values[position]) for extra in board.extras]


def extras_to_rich(board: Board) -> "Table":
    """Return the columns on request for the terminal: a line each and a column per row, so that it stays narrow."""
    from rich.table import Table

    shown = [i for i in range(len(board.rows)) if any(extra.values[i] is not None for extra in board.extras)]
    table = Table(padding=(0, 1))
    table.add_column("")
    several = len({board.rows[i].layer for i in shown}) > 1
    for i in shown:
        row = board.rows[i]
        table.add_column(
            table_cell(f"{row.label} {row.layer}" if several else row.label, overflow="fold"), justify="right"
        )
    for extra in board.extras:
        table.add_row(table_cell(extra.name), *(table_cell(extra_text(extra.values[i])) for i in shown))
    return table


def column_names(groups: Mapping[ColumnKey, Sequence[Result]]) -> dict[ColumnKey, str]:
    """Return a name for each group: its benchmark, else protocol/data; in brackets its difference from namesakes."""
    namesakes: dict[str, list[ColumnKey]] = defaultdict(list)
    for group, members in groups.items():
        data = members[0].data
        name = group.benchmark.rsplit(" v", 1)[0] or f"{members[0].protocol.name}/{data_name(data.test.name)}"
        namesakes[f"{name}{data.noise_text}"].append(group)
    names = {}
    for name, alike in namesakes.items():
        headings = [[each.heading for each in values] for values in differences(alike).values()]
        headings = [texts for texts in headings if len(set(texts)) > 1]
        for i, group in enumerate(alike):
            own = ", ".join(dict.fromkeys(texts[i] for texts in headings))
            names[group] = f"{name} [{own}]" if own else name
    counts = Counter(names.values())  # shortening may have made some equal
    digests = {group: hashlib.sha256(repr(dataclasses.astuple(group)).encode()).hexdigest() for group in names}
    return {group: name if counts[name] == 1 else f"{name} #{digests[group][:8]}" for group, name in names.items()}


def data_name(name: str) -> str:
    """Return the name of data without split and folder.

    >>> data_name("pictures/photos/ (train)"), data_name("pictures/photos/ (val), 60 of 180")
    ('photos', 'photos, 60 of 180')
    """
    if limited := re.fullmatch(r"(.+)(, [0-9]+ of [0-9]+)", name):
        return data_name(limited[1]) + limited[2]
    base = name.rsplit(" (", 1)[0] if name.endswith(")") else name
    base = base.rstrip("/\\")
    return base if ":" in base else base.replace("\\", "/").rsplit("/", 1)[-1] or name


def natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key with numbers in numerical order.

    >>> sorted(["k=200", "k=20"], key=natural)
    ['k=20', 'k=200']
    """
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", name)]


def row_names(rows: Mapping[str, Result]) -> dict[str, str]:
    """Return a label for each row: the weights' name; in brackets its difference from namesakes with the same layer."""
    namesakes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for key, record in rows.items():
        namesakes[record.weights.name, record.feature].append(key)
    labels = {}
    for (name, _), keys in namesakes.items():
        described = {
            key: {
                **{"backbone": rows[key].weights.backbone, "precision": precision_text(rows[key])},
                **preprocessing_words(rows[key].preprocessing),
                **{"sha256": rows[key].weights.sha256[:8], "code": code_text(rows[key].weights.code)},
            }
            for key in keys
        }
        every = {part for parts in described.values() for part in parts}
        ordered = [*(part for part in _FIRST if part in every), *sorted(every.difference(_FIRST))]
        differing = [part for part in ordered if len({parts.get(part) for parts in described.values()}) > 1]
        for key in keys:
            parts = [described[key].get(part, f"{'no' if part in _OPTIONAL else 'usual'} {part}") for part in differing]
            labels[key] = f"{name} [{', '.join(parts)}]" if parts else name
    return labels


def precision_text(record: Result) -> str:
    """Return the precision of the forward pass, and that of the stored features unless it is float32."""
    stored = "" if record.feature_dtype == "float32" else f", stored as {record.feature_dtype}"
    return f"{record.precision}{stored}"


def code_text(code: Mapping[str, str]) -> str:
    """Return the identity of the forward pass besides tensors: 'timm 1.0.15', 'code 3f2a9c'."""
    own = {name: value for name, value in code.items() if name in ("source", "structure", "probe", "unknown")}
    words = [f"{name} {version}" for name, version in code.items() if name not in own]
    words += [f"code {digest(own)[:6]}"] if own else []
    return " ".join(words) or "code not recorded"


def preprocessing_text(values: Mapping[str, Any]) -> str:
    """Return the preprocessing in a few words ('resize 256 bilinear, crop 224'), mean and std unless ImageNet's."""
    return ", ".join(preprocessing_words(values).values())


def preprocessing_words(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the words of `preprocessing_text`, each under the name of its value."""
    words = {}
    for key in ("resize", "squash", "crop"):
        if (size := values.get(key)) is not None:
            sides = [short_text(side) for side in (size if isinstance(size, list | tuple) else [size])]
            words[key] = f"{key} {'x'.join(sides[:1] if len(set(sides)) == 1 else sides)}"
    if "resize" in words and "interpolation" in values:
        words["resize"] += f" {values['interpolation']}"
    for key, usual in (("mean", IMAGENET_MEAN), ("std", IMAGENET_STD)):
        if isinstance(values.get(key), list | tuple) and tuple(values[key]) != usual:
            numbers = [(f"{value:g}" if isinstance(value, float) else short_text(value)) for value in values[key]]
            words[key] = f"{key} {'/'.join(numbers[:1] if len(set(numbers)) == 1 else numbers)}"
    parameters = ("resize", "squash", "crop", "interpolation", "mean", "std", "origin")
    others = {key: item for key, item in values.items() if key not in parameters and (key, item) != ("space", "RGB")}
    return words | {key: f"{key} {short_text(item)}" for key, item in others.items()}
