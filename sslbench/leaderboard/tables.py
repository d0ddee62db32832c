"""Tables of a board: CSV (numbers only), Markdown, LaTeX and the terminal."""

import html
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sslbench.errors import ResultError
from sslbench.leaderboard.columns import COLUMNS, extra_texts
from sslbench.leaderboard.model import FLOORS, Board, Cell, Row, seeds_of, shown, value
from sslbench.metrics.catalog import find
from sslbench.paths import not_written
from sslbench.results.records import replace_file
from sslbench.text import csv_text, table_cell, visible

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table


_MARKS: dict[str, tuple[str, Callable[[Cell], bool]]] = {
    "*": ("best", lambda cell: cell.best),
    "=": ("tied with it", lambda cell: not cell.best and cell.tied is True),
    "!": ("not clearly above untrained", lambda cell: _below_floor(cell, "untrained")),
    "#": ("not clearly above pixels", lambda cell: _below_floor(cell, "pixels")),
}
"""Characters before a value: their meaning, and whether a cell has it."""
_LONG = (
    "kind weights backbone layer preprocessing precision column metric shown value low high n "
    "tied_with_best above_untrained above_pixels seeds protocol protocol_version settings benchmark benchmark_version "
    "preset modified converged n_train train_part"
).split()
_LONG += [column.name for column in COLUMNS]
_LONG += ["weights_sha256", "train_fingerprint", "test_fingerprint", "ids", "source", "flags"]

_ANSWERS = {True: "yes", False: "no", None: "unknown"}
_NAME = 60
"""Characters of a name that are not broken."""
_STYLES = {"result": "", "published": "italic", "floor": "dim"}
_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "…": r"\ldots{}",
    "·": r"$\cdot$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def to_csv(board: Board, path: Path, form: Literal["wide", "long"] = "wide") -> None:
    """Write a board as CSV: UTF-8, plain numbers (percent for rates) with a decimal point, empty for none."""
    lines = wide(board)
    if form == "long":
        cells = ((row, i, cell) for row in board.rows for i, cell in enumerate(row.cells) if cell is not None)
        entries = (entry for row, i, cell in cells for entry in _long_rows(board, row, i, cell))
        lines = iter([list(_LONG), *([entry.get(name, "") for name in _LONG] for entry in entries)])
    write_text(path, csv_text(lines))


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    try:
        replace_file(Path(path), text.encode())
    except OSError as error:
        raise ResultError(not_written(Path(path), error)) from error


def wide(board: Board) -> Iterator[list[Any]]:
    """Yield the lines of a CSV with one row per row of the board and one column per column."""
    # Behind each value its interval, 'best', 'yes' or 'no' for a tie with the best, and 'yes', 'no' or 'unknown' for
    # each floor that it was tested against.
    fixed = ["weights", "backbone", "layer", "preprocessing", "precision"]
    average = ["average"] if board.averaged else []
    further = [extra.name for extra in board.extras]
    tests = ["low", "high", "tied", *(f"above_{name}" for name in FLOORS)]
    heads = [head for column in board.columns for head in (column.name, *(f"{column.name} {test}" for test in tests))]
    yield [*fixed, *heads, *average, *further, "flags"]
    for position, row in enumerate(board.rows):
        values = [text for i in range(len(board.columns)) for text in _tested(board, row, i)]
        named = [getattr(row, name) for name in fixed[1:]]
        extras = [number(extra.values[position]) for extra in board.extras]
        mean = [number(row.average)] if average else []
        yield [row.label, *named, *values, *mean, *extras, "; ".join(row.flags)]


def _tested(board: Board, row: Row, position: int) -> list[str]:
    """Return a value of a wide CSV, its interval, its tie with the best and its floors."""
    metric, cell = shown(row, position, board.columns), row.cells[position]
    numbers = [number(getattr(metric, part, None)) for part in ("value", "low", "high")]
    if metric is None or cell is None:
        return [*numbers, "", *("" for _ in FLOORS)]
    # A lone row, and rows of a metric without a direction, have no best one to be tied with.
    compared = row.kind == "result" and any(other and other.best for other in (r.cells[position] for r in board.rows))
    tied = "best" if cell.best else _ANSWERS[cell.tied] if compared else ""
    return [*numbers, tied, *(_ANSWERS[cell.floors[name].above] if name in cell.floors else "" for name in FLOORS)]


def _long_rows(board: Board, row: Row, position: int, cell: Cell) -> Iterator[dict[str, Any]]:
    column = board.columns[position]
    key = column.group.key
    common: dict[str, Any] = {
        "kind": row.kind,
        "weights": row.label,
        **{name: getattr(row, name) for name in ("backbone", "layer", "preprocessing", "precision")},
        "column": column.name,
        "protocol": key.protocol,
        "protocol_version": key.version,
        "settings": key.settings,
        "n_train": key.n_train,
        "train_part": key.train_part,
        "weights_sha256": row.sha256,
        "train_fingerprint": key.train,
        "test_fingerprint": key.test,
        "flags": "; ".join(row.flags),
    }
    if cell.published is not None:  # a published number has its own data and settings, not the column's
        own_columns = ("protocol_version", "settings", "n_train", "train_part", "train_fingerprint", "test_fingerprint")
        common |= dict.fromkeys(own_columns, "") | {
            "protocol": cell.published.protocol,
            "source": f"{cell.published.source}: {cell.published.where}",
        }
        common |= {"benchmark": cell.published.benchmark}
    if cell.records:
        first = cell.records[0]
        common |= {
            "seeds": _joined(seed for r in cell.records for seed in seeds_of(r)),
            "ids": _joined(r.id for r in cell.records),
        }
        common |= {"converged": "" if first.converged is None else int(all(r.converged for r in cell.records))}
        if first.benchmark is not None:
            modified = any(r.benchmark.modified for r in cell.records if r.benchmark is not None)
            common |= {"benchmark": first.benchmark.name, "benchmark_version": first.benchmark.version}
            common |= {"modified": int(modified)}
        if first.preset is not None:
            modified = any(r.preset.modified for r in cell.records if r.preset is not None)
            common |= {"preset": first.preset.name, "modified": int(modified or common.get("modified", 0))}
        # A row of the long table is one cell, whose records give the costs of the backbone.
        further = {column.name: number(column.value(cell.records)) for column in COLUMNS}
        common |= {column.name: further[column.name] for column in COLUMNS if not column.headline_only}
    for name in sorted(cell.metrics, key=lambda name: (name != column.metric, name)):
        metric, leads = cell.metrics[name], name == column.metric
        entry = {"metric": name, "shown": int(leads), "n": "" if metric.n is None else metric.n}
        entry |= {part: number(getattr(metric, part)) for part in ("value", "low", "high")}
        if leads and cell.tied is not None:
            entry["tied_with_best"] = int(cell.tied)
        if leads:
            entry |= {f"above_{floor}": _ANSWERS[test.above] for floor, test in cell.floors.items()}
        if cell.records and name == cell.records[0].headline:
            entry |= {column.name: further[column.name] for column in COLUMNS if column.headline_only}
        yield common | entry


def _joined(items: Iterable[object]) -> str:
    return " ".join(str(item) for item in items)


def number(value: float | str | None) -> str:
    """Return a number for a CSV, with up to 6 digits after the point; a text as it is; empty for None.

    >>> number(12.5), number(None)
    ('12.5', '')
    """
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:.6f}".rstrip("0").rstrip(".")


def cell_text(board: Board, row: Row, position: int) -> str:
    """Return the value and its 95 % interval, such as '91.64 [90.38, 92.77]'; empty for a hole."""
    metric = shown(row, position, board.columns)
    return str(metric) if metric is not None else "" if row.cells[position] is None else "n/a"


def marks(cell: Cell | None) -> str:
    """Return the characters of a cell: '*' best, '=' tied with it, '!' and '#' not clearly above untrained, pixels."""
    return "" if cell is None else "".join(mark for mark, (_, holds) in _MARKS.items() if holds(cell))


def _below_floor(cell: Cell, name: str) -> bool:
    return name in cell.floors and cell.floors[name].above is False


def marked_text(board: Board, row: Row, position: int) -> str:
    """Return the value and its interval with its marks before it, such as '=! 91.64 [90.38, 92.77]'."""
    return f"{marks(row.cells[position])} {cell_text(board, row, position)}".strip()


def legend(board: Board) -> str:
    """Return the explanation of the intervals, of the marks that the board has, and of the order of its rows."""
    used = {mark for row in board.rows for cell in row.cells for mark in marks(cell)}
    meanings = ", ".join(f"{mark} {meaning}" for mark, (meaning, _) in _MARKS.items() if mark in used)
    by = f" by {board.columns[board.sorted_by].name}" if len(board.columns) > 1 else ""
    paired = f"{meanings} (by paired intervals over the test samples). " if meanings else ""
    return f"In brackets: 95 % interval. {paired}Order: best first{by}, floors last."


def leads(cell: Cell | None) -> bool:
    """Return whether a cell is bold: the best, or tied with it, and not refused by a floor."""
    if cell is None or any(_below_floor(cell, name) for name in cell.floors):
        return False
    return cell.best or cell.tied is True


def several_layers(board: Board) -> bool:
    """Return whether the layer must be shown: results differ in it, or only it tells two rows apart."""
    namesakes = len({(row.label, row.layer) for row in board.rows}) > len({row.label for row in board.rows})
    return namesakes or len({row.layer for row in board.rows if row.kind == "result"}) > 1


def titles(board: Board) -> list[str]:
    """Return the headings of the columns, such as 'knn/photos top1'."""
    return [column.title for column in board.columns]


def to_markdown(board: Board, path: Path) -> None:
    """Write a board as a Markdown table, its notes below it."""
    write_text(path, markdown(board))


def markdown(board: Board) -> str:
    """Return a board as a Markdown table, its verdicts above and its notes below it."""
    layer = several_layers(board)
    heads = [
        "weights",
        *(["layer"] if layer else []),
        *titles(board),
        *(["average"] if board.averaged else []),
        *(extra.name for extra in board.extras),
        "flags",
    ]
    right = len(board.columns) + bool(board.averaged) + len(board.extras)
    lines = [_markdown(heads), "|" + "---|" * (1 + layer) + "---:|" * right + "---|"]
    for row in board.rows:
        texts = [cell_text(board, row, i) for i in range(len(board.columns))]
        cells = [
            f"{marks(cell)} **{text}**" if leads(cell) else f"{marks(cell)} {text}".strip()
            for text, cell in zip(texts, row.cells, strict=True)
        ]
        average = [f"{row.average:.2f}" if row.average is not None else ""] if board.averaged else []
        cells_of_row = [*cells, *average, *extra_texts(board, row)]
        lines.append(_markdown([row.label, *([row.layer] if layer else []), *cells_of_row, "; ".join(row.flags)]))
    above = [line for verdict in board.verdicts for line in (_markdown_text(verdict), "")]
    below = [line for note in (legend(board), *board.notes) for line in ("", _markdown_text(note))]
    return "\n".join([*above, *lines, *below]) + "\n"


def _markdown(cells: Iterable[str]) -> str:
    return "| " + " | ".join(_markdown_text(cell).replace("|", "\\|") for cell in cells) + " |"


def _markdown_text(text: str) -> str:
    """Escape the HTML that a name may hold, which Markdown would show as such."""
    return html.escape(text, quote=False).replace("\n", " ").replace("* ", "\\* ")


def to_rich(board: Board, width: int) -> "Group":
    """Return a table for a terminal of `width` characters, with the legend, flags and notes below it."""
    from rich.console import Group

    # Where the numbers do not fit beside each other, each column of the board becomes a block of rows.
    numbers = {flag: f"[{i}]" for i, flag in enumerate(distinct_flags(board), start=1)}
    drawn = _beside(board, numbers) if _least_width(board) <= width else _below(board, numbers)
    lines = [legend(board), *(f"{number} {flag}" for flag, number in numbers.items()), *board.notes]
    return Group(drawn, *map(table_cell, lines))


def _least_width(board: Board) -> int:
    """Return the number of characters that a table needs so that no number is broken."""
    columns = [[marked_text(board, row, i) for row in board.rows] for i in range(len(board.columns))]
    columns += [["100.00"]] if board.averaged else []
    words = [row.label for row in board.rows]
    longest = [min(_NAME, max(map(len, words), default=0)), *([10] if several_layers(board) else [])]
    return 1 + sum(3 + n for n in (*longest, *(max(map(len, texts), default=0) for texts in columns)))


def _below(board: Board, numbers: dict[str, str]) -> "Table":
    """Return the long form: a block per column of the board, best first, floors last, below the column's title."""
    from rich.table import Table

    layer = several_layers(board)
    result = Table(padding=(0, 1))
    for name in ("weights", *(["layer"] if layer else [])):
        result.add_column(name, overflow="fold")
    result.add_column("value", justify="right", no_wrap=True)
    blocks = [
        (title, [(row, marked_text(board, row, i), leads(row.cells[i])) for row in _ranked(board, i)])
        for i, title in enumerate(titles(board))
    ]
    if board.averaged:
        known = [row for row in board.rows if row.average is not None]
        known.sort(key=lambda row: -(row.average or 0.0))
        blocks.append((f"average of {board.averaged}", [(row, f"{row.average:.2f}", False) for row in known]))
    for title, lines in blocks:
        result.add_row(table_cell(title, style="bold underline"))
        for place, (row, text, bold) in enumerate(lines):
            flags = "".join(numbers[flag] for flag in row.flags if flag in numbers)
            cells = [table_cell(f"  {row.label} {flags}".rstrip())]
            cells += [table_cell(row.layer)] if layer else []
            cells.append(table_cell(text, style="bold" if bold else ""))
            result.add_row(*cells, style=_STYLES[row.kind], end_section=place + 1 == len(lines))
    return result


def _ranked(board: Board, position: int) -> list[Row]:
    """Return the rows with a result in a column: best first, published numbers and floors behind."""
    sign = find(board.columns[position].metric).sign
    found = [row for row in board.rows if row.cells[position] is not None]
    values = {id(row): value(row, position, board.columns) for row in found}
    order = list(_STYLES)
    return sorted(
        found, key=lambda row: (order.index(row.kind), math.inf if (v := values[id(row)]) is None else -sign * v)
    )


def _beside(board: Board, numbers: dict[str, str]) -> "Table":
    """Return the wide form: a row per row of the board, a column per column."""
    from rich.table import Table

    layer = several_layers(board)
    result = Table(padding=(0, 1))
    result.add_column("weights", overflow="fold")
    if layer:
        result.add_column("layer", overflow="fold")
    for title in [*titles(board), *(["average"] if board.averaged else [])]:
        result.add_column(table_cell(title, overflow="fold"), justify="right", overflow="fold")
    for position, row in enumerate(board.rows):
        flags = "".join(numbers[flag] for flag in row.flags if flag in numbers)
        cells = [table_cell(f"{row.label} {flags}".strip()), *([table_cell(row.layer)] if layer else [])]
        for i, cell in enumerate(row.cells):
            cells.append(table_cell(marked_text(board, row, i), style="bold" if leads(cell) else ""))
        if board.averaged:
            cells.append(table_cell("" if row.average is None else f"{row.average:.2f}"))
        ends = position + 1 < len(board.rows) and board.rows[position + 1].kind != row.kind
        result.add_row(*cells, style=_STYLES[row.kind], end_section=ends)
    return result


def distinct_flags(board: Board) -> list[str]:
    """Return the flags that are numbered beside the rows and explained below the table."""
    return [flag for flag in dict.fromkeys(flag for row in board.rows for flag in unmarked(row)) if flag != "floor"]


def unmarked(row: Row) -> list[str]:
    """Return the flags of a row that no mark before a value tells."""
    return [flag for flag in row.flags if not flag.startswith("not clearly above ")]


def to_latex(board: Board, path: Path) -> None:
    """Write a board as LaTeX; the document needs `booktabs`."""
    # The best values and those tied with them are bold, the 95 % interval stands small beside a value, and flags are
    # numbered footnotes.
    write_text(path, latex(board))


def latex(board: Board) -> str:
    """Return a board as LaTeX."""
    layer = several_layers(board)
    right = len(board.columns) + bool(board.averaged)
    heads = ["weights", *(["layer"] if layer else []), *titles(board), *(["average"] if board.averaged else [])]
    flags = {flag: number for number, flag in enumerate(distinct_flags(board), start=1)}
    lines = [
        "% \\usepackage{booktabs}",
        *(f"% {visible(verdict)}" for verdict in board.verdicts),
        f"\\begin{{tabular}}{{{'l' * (1 + layer)}{'r' * right}}}",
        "\\toprule",
        _line([escape(head) for head in heads]),
        "\\midrule",
    ]
    for position, row in enumerate(board.rows):
        if position and row.kind != board.rows[position - 1].kind:
            lines.append("\\midrule")
        numbers = ",".join(str(flags[flag]) for flag in row.flags if flag in flags)
        label = escape(row.label) + (f"$^{{{numbers}}}$" if numbers else "")
        cells = [_cell(board, row, i) for i in range(len(board.columns))]
        average = ["" if row.average is None else f"{row.average:.2f}"] if board.averaged else []
        lines.append(_line([label, *([escape(row.layer)] if layer else []), *cells, *average]))
    lines += ["\\bottomrule", "\\end{tabular}"]
    texts = [legend(board), *board.notes]
    below = [f"$^{{{number}}}$ {escape(flag)}." for flag, number in flags.items()] + [escape(text) for text in texts]
    return "\n".join([*lines, "", "{\\footnotesize", *[f"\\par {text}" for text in below], "}"]) + "\n"


def _cell(board: Board, row: Row, position: int) -> str:
    metric = shown(row, position, board.columns)
    if metric is None or metric.value is None:
        return cell_text(board, row, position)
    number = f"{metric.value:.2f}"
    text = f"\\textbf{{{number}}}" if leads(row.cells[position]) else number
    text += f"$^{{{escape(own)}}}$" if (own := marks(row.cells[position])) else ""
    if metric.low is None or metric.high is None:
        return text
    return f"{text} {{\\scriptsize[{metric.low:.2f}, {metric.high:.2f}]}}"


def _line(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"


def escape(text: str) -> str:
    r"""Return text with LaTeX's special characters escaped.

    >>> print(escape("50 %"))
    50 \%
    """
    return "".join(_ESCAPES.get(character, character) for character in text)
