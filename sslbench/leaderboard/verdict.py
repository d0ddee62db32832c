"""Verdicts of a board: the best row of each column, the rows tied with it, and the floors, in a sentence."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from sslbench.leaderboard.columns import preprocessing_words
from sslbench.leaderboard.model import FLOORS, Cell, Column, Row, value
from sslbench.metrics.catalog import find

_NAMED = 3
"""Rows that a sentence names; of more it gives the number."""


def verdicts(rows: Sequence[Row], columns: tuple[Column, ...]) -> tuple[str, ...]:
    """Return a sentence per column with results, and one for each difference in preprocessing inside a column.

    `rows`: the rows of results, whose cells are marked.
    """
    names = names_of(rows)
    found, mixed = [], defaultdict[str, list[str]](list)
    for i, column in enumerate(columns):
        cells = [
            (names[id(row)], v, cell)
            for row in rows
            if (v := value(row, i, columns)) is not None
            for cell in (row.cells[i],)
            if cell is not None
        ]
        if not cells:
            continue
        found.append(f"{column.title}: {_sentence(column, cells)}.")
        if text := _preprocessing([(name, cell) for name, _, cell in cells]):
            mixed[text].append(column.title)
    for text, titles in mixed.items():
        found.append(f"{'; '.join(titles)}: the images were preprocessed differently: {text}.")
    return tuple(found)


def names_of(rows: Sequence[Row]) -> dict[int, str]:
    """Return the id of each row -> its name, with the layer where that alone tells rows apart."""
    labels = Counter(row.label for row in rows)
    return {id(row): f"{row.label} {row.layer}" if labels[row.label] > 1 else row.label for row in rows}


def _sentence(column: Column, cells: Sequence[tuple[str, float, Cell]]) -> str:
    if find(column.metric).direction == 0:
        return f"no row is called best, as the direction of {column.metric} is unknown"
    leaders = [each for each in cells if each[2].best]
    _, number, leading = (leaders or cells)[0]
    best = [name for name, _, _ in leaders]
    others = [(name, cell) for name, _, cell in cells if not cell.best] if leaders else []
    text = f"{_listed(best)} {'is' if len(best) == 1 else 'are'} best ({number:.2f})"
    if not leaders:
        text = f"{cells[0][0]} has {number:.2f}"
    tied = [name for name, cell in others if cell.tied]
    untested = [name for name, cell in others if cell.tied is None]
    text += f", tied with {_listed(tied)}" if tied else ""
    text += f", not tested against {_listed(untested)}" if untested else ""
    if others and not tied and not untested:
        text += f", better than {_listed([name for name, _ in others])}"
    floors = _floors(leading, [cell for _, _, cell in cells])
    return f"{text}; {floors}" if floors else text


def _floors(best: Cell, cells: Sequence[Cell]) -> str:
    """Return the clause on floors: those that the best row is above, those that it or no row at all is above."""
    parts = defaultdict[str, list[str]](list)
    for name in FLOORS:
        if name not in best.floors:
            continue
        own = best.floors[name]
        start, text = "above", f"{name} ({own.value:.2f})"
        tests = [cell.floors[name] for cell in cells if name in cell.floors]
        if own.above is None:
            start = "not tested against"
        elif not own.above and len(cells) == len(tests) > 1 and all(test.above is False for test in tests):
            start = "none is clearly above"
            text = text if len({test.value for test in tests}) == 1 else "its untrained network"
        elif not own.above:
            start = "not clearly above"
        parts[start].append(text)
    return ", ".join(f"{start} {(' and ' if start == 'above' else ' or ').join(each)}" for start, each in parts.items())


def _preprocessing(cells: Sequence[tuple[str, Cell]]) -> str:
    """Return the parameters in which the preprocessing of some rows differs, with the rows of each value."""
    words = {name: preprocessing_words(cell.records[0].preprocessing) for name, cell in cells if cell.records}
    texts = []
    for key in dict.fromkeys(key for each in words.values() for key in each):
        named = defaultdict[str, list[str]](list)
        for name, each in words.items():
            named[each.get(key, f"usual {key}" if key in ("mean", "std") else f"no {key}")].append(name)
        if len(named) > 1:
            texts.append(", ".join(f"{text} ({_listed(names)})" for text, names in named.items()))
    return "; ".join(texts)


def _listed(names: Sequence[str]) -> str:
    """Return a few names in words: 'A', 'A and B', 'A, B and 4 more'."""
    shown = [*names] if len(names) <= _NAMED else [*names[: _NAMED - 1], f"{len(names) - _NAMED + 1} more"]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
