"""LaTeX table of a board in the style of papers (booktabs)."""

from pathlib import Path

from sslbench.leaderboard.model import Board, Row, shown
from sslbench.leaderboard.writers import tables

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


def to_latex(board: Board, path: Path) -> None:
    """Write a board as LaTeX; the document needs `booktabs`.

    The best values and those tied with them are bold, the 95 % interval stands small beside a value, and flags are
    numbered footnotes.

    Raises:
        ResultError: the file cannot be written.
    """
    tables.write_text(path, latex(board))


def latex(board: Board) -> str:
    """Return a board as LaTeX."""
    layer = tables.several_layers(board)
    right = len(board.columns) + bool(board.averaged)
    titles = tables.titles(board)
    heads = ["weights", *(["layer"] if layer else []), *titles, *(["average"] if board.averaged else [])]
    marks = {flag: number for number, flag in enumerate(tables.distinct_flags(board), start=1)}
    lines = [
        "% \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{{'l' * (1 + layer)}{'r' * right}}}",
        "\\toprule",
        _line([escape(head) for head in heads]),
        "\\midrule",
    ]
    for position, row in enumerate(board.rows):
        if position and row.kind != board.rows[position - 1].kind:
            lines.append("\\midrule")
        lines.append(_line(_row(board, row, marks, layer)))
    lines += ["\\bottomrule", "\\end{tabular}"]
    texts = [tables.LEGEND, *board.notes]
    below = [f"$^{{{number}}}$ {escape(flag)}." for flag, number in marks.items()] + [escape(text) for text in texts]
    return "\n".join([*lines, "", "{\\footnotesize", *[f"\\par {text}" for text in below], "}"]) + "\n"


def _row(board: Board, row: Row, marks: dict[str, int], layer: bool) -> list[str]:
    numbers = ",".join(str(marks[flag]) for flag in row.flags if flag in marks)
    label = escape(row.label) + (f"$^{{{numbers}}}$" if numbers else "")
    cells = [_cell(board, row, i) for i in range(len(board.columns))]
    average = ["" if row.average is None else f"{row.average:.2f}"] if board.averaged else []
    return [label, *([escape(row.layer)] if layer else []), *cells, *average]


def _cell(board: Board, row: Row, position: int) -> str:
    metric = shown(row, position, board.columns)
    if metric is None or metric.value is None:
        return tables.cell_text(board, row, position)
    number = f"{metric.value:.2f}"
    text = f"\\textbf{{{number}}}" if tables.leads(row.cells[position]) else number
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
