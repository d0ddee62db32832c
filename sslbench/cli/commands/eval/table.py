"""The table that `eval` ends with."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from sslbench.cli.echo import echo, note
from sslbench.results import MetricValue, Result, mean_line
from sslbench.text import table_cell

if TYPE_CHECKING:
    from rich.table import Table

_SHOWN = 10  # groups of a column
_SEVERITY = re.compile(r"corruption_error\(\w+,\d\)")


def print_results(results: list[Result], out: Path) -> None:
    """Print one row per result: the headline metric with its interval, the selection, and the floors."""
    from rich.console import Console
    from rich.table import Table

    from sslbench.leaderboard.flags import underfitted

    table = Table(box=None, pad_edge=False)
    names = ["weights", "layer", "protocol", "metric", "value", "95 % interval", "train"]
    stated = dict.fromkeys(n for result in results for n, floor in result.floors.items() if result.headline in floor)
    floors = [name for name in dict.fromkeys(("untrained", "pixels", "majority", *stated)) if name in stated]
    for name in names + floors + ["selected"]:
        table.add_column(name, justify="right" if name in ("value", "train", *floors) else "left", overflow="fold")
    for result in results:
        metric = result.metrics[result.headline]
        flags = [] if result.converged is not False else ["not converged"]
        flags += ["selected on test"] if str(result.selected.get("on", "")).startswith("test") else []
        flags += ["underfitted"] if underfitted(result) else []
        flags += ["partial weights"] if result.weights.partial else []
        flags += _left_out(result)
        cells = (
            result.weights.name,
            result.layer,
            _protocol(result),
            result.headline + _of_set(result, results),
            _number(metric.value) + (f" ({', '.join(flags)})" if flags else ""),
            _interval(metric),
            _number(result.train),
            *[_number(result.floors.get(name, {}).get(result.headline)) for name in floors],
            _selected(result),
        )
        table.add_row(*map(table_cell, cells))
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    console.print(table)
    groups = _groups(results)
    if groups is not None:
        echo("")
        console.print(groups)
    for result in results:
        parts = _parts(result)
        if parts is not None:
            echo(f"\n{_protocol(result)} on {result.weights.name}, {result.layer}:")
            console.print(parts)
    for line in _remarks(results):
        echo(line)
    for result in results:
        for reference in result.references:
            changed = ", on a modified benchmark" if result.benchmark and result.benchmark.modified else ""
            echo(f"{_protocol(result)} on {result.weights.name}: {reference.line()}{changed}")
    for result in results:
        echo(f"{result.protocol.name}: {result.file}")
    note(f"\nsslbench leaderboard {out}  prints one table of all results there")


def _groups(results: list[Result]) -> "Table | None":
    """Return the groups of every column asked for, the worst first; the rest are in the record."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("by", "weights", "layer", "protocol", "metric", "group", "value", "95 % interval", "n"):
        table.add_column(name, justify="right" if name in ("value", "n") else "left", overflow="fold")
    for result in results:
        fixed = (result.weights.name, result.layer, _protocol(result), result.headline)
        for column, groups in result.groups.items():
            for i, group in enumerate(groups[:_SHOWN]):
                name = f"{group.name} (worst of {len(groups)})" if i == 0 else group.name
                value, interval = _number(group.metric.value), _interval(group.metric)
                cells = (column, *fixed, name, value, interval, f"{group.metric.n:,}")
                table.add_row(*map(table_cell, cells))
            if len(groups) > _SHOWN:
                table.add_row(*map(table_cell, (column, *fixed, f"... and {len(groups) - _SHOWN} more")))
    return table if table.row_count else None


def _parts(result: Result) -> "Table | None":
    """Return the metrics of parts of the data, such as `corruption_error(fog,3)`: a row per part, severities aside."""
    from rich.table import Table

    from sslbench.evaluation.corruption_curves import errors_by_severity
    from sslbench.metrics.catalog import find

    found: dict[tuple[str, str], MetricValue] = {}
    for name, value in result.metrics.items():
        part = re.fullmatch(r"(\w+)\((.*)\)", name)
        if _SEVERITY.fullmatch(name):
            continue
        if part:
            found[part[1], part[2].replace(",", " ")] = value
        elif find(name).needs in ("versions", "videos") and name != result.headline:
            found[name, "all"] = value
    severities = errors_by_severity(result)
    if not found:
        return None
    places = sorted({at for values in severities.values() for at in values})
    table = Table(box=None, pad_edge=False)
    for heading in ("metric", "of", "value", "95 % interval", *(f"severity {at}" for at in places)):
        table.add_column(heading, justify="left" if heading in ("metric", "of", "95 % interval") else "right")
    for (metric, name), value in found.items():
        by_severity = severities.get(name, {}) if metric == "corruption_error" else {}
        each = (_number(by_severity[at].value) if at in by_severity else "" for at in places)
        digits = 2 if find(metric).unit == "%" else 4
        cells = (metric, name, _number(value.value, digits), _interval(value, digits), *each)
        table.add_row(*map(table_cell, cells))
    return table


def _of_set(result: Result, results: list[Result]) -> str:
    """Return the name of the test part where several results of a protocol differ in it: ' on imagenet-a'."""
    alike = [
        r
        for r in results
        if (r.weights, r.layer, r.protocol.name) == (result.weights, result.layer, result.protocol.name)
    ]
    return f" on {result.data.test.name}" if len({r.data.test.name for r in alike}) > 1 else ""


def _left_out(result: Result) -> list[str]:
    """Return the numbers of images used, where some cannot be read."""
    train, test = result.data.train, result.data.test
    found = [f"n = {test.n_used} of {test.n}"] if test.n_used < test.n else []
    return found + ([f"train: {train.n_used} of {train.n}"] if train.n_used < train.n else [])


def _overlaps(result: Result) -> str:
    """Return the line on suspected overlaps and the score without them."""
    found = result.overlaps
    if found is None or not found.n:
        return ""
    without = ""
    if found.without is not None:
        without = f"; {result.headline} without them {_number(found.without.value)} ({_interval(found.without)})"
    overlaps = f"{found.n:,} suspected overlap{'s' if found.n > 1 else ''} between train and test"
    where = f"{_protocol(result)} on {result.weights.name}, {result.layer}"
    return f"{where}: {overlaps}{without}, listed in {found.pairs_file}"


def _remarks(results: list[Result]) -> list[str]:
    """Return the lines on overlaps, missing floors and trainings, each once."""
    lines = [line for result in results if (line := _overlaps(result))]
    lines += [line for result in results for line in _missing_floors(result)]
    lines += [_trainings(result) for result in results if result.seeds is not None]
    return list(dict.fromkeys(lines))


def _trainings(result: Result) -> str:
    """Return the values of several trainings, or that there is one."""
    if not result.trainings:
        return f"{_protocol(result)}: one training, so the variance between trainings is unknown (seeds=3 measures it)"
    values = [training.metrics.get(result.headline) for training in result.trainings]
    line = mean_line(result.headline, values, result.seed)
    return f"{_protocol(result)} on {result.weights.name}, {result.layer}: {line}"


def _missing_floors(result: Result) -> list[str]:
    """Return the floors that are missing, with the reasons."""
    return [f"{_protocol(result)}: no floor '{name}': {reason}" for name, reason in result.missing_floors.items()]


def _protocol(result: Result) -> str:
    """Return the protocol, with the preset it was run with: 'knn (knn/dino)'."""
    noise = f", {100 * result.data.label_noise:g} % label noise" if result.data.label_noise else ""
    if result.preset is None:
        return result.protocol.name + noise
    return f"{result.protocol.name} ({result.preset.name}{', modified' if result.preset.modified else ''}){noise}"


def _number(value: float | None, digits: int = 2) -> str:
    return "n/a" if value is None else f"{value:.{digits}f}"


def _interval(metric: MetricValue, digits: int = 2) -> str:
    if metric.low is None or metric.high is None:
        return ""
    return f"{metric.low:.{digits}f} .. {metric.high:.{digits}f}"


def _selected(result: Result) -> str:
    """Return the selection, without details: 'k = 20 on held-out 10 % of train'."""
    first = next(((k, v) for k, v in result.selected.items() if isinstance(v, int | float)), None)
    if first is None:
        return ""
    where = f" on {result.selected['on']}" if "on" in result.selected else ""
    return f"{first[0]} = {first[1]:g}{where}"
