"""The table that `eval` ends with."""

from pathlib import Path
from typing import TYPE_CHECKING

from sslbench.cli.echo import echo
from sslbench.results import MetricValue, Result
from sslbench.text import table_cell

if TYPE_CHECKING:
    from rich.table import Table

_SHOWN = 10  # groups of a column


def print_results(results: list[Result], out: Path) -> None:
    """Print one row per result: the headline metric with its interval, the selection, and the floors."""
    from rich.console import Console
    from rich.table import Table

    from sslbench.leaderboard.flags import underfitted

    table = Table(box=None, pad_edge=False)
    names = ["weights", "layer", "protocol", "metric", "value", "95 % interval", "train"]
    floors = [name for name in ("untrained", "pixels", "majority", "chance") if any(name in r.floors for r in results)]
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
            result.headline,
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
    for line in filter(None, map(_overlaps, results)):
        echo(line)
    for line in dict.fromkeys(line for result in results for line in _missing_floors(result)):
        echo(line)
    for result in results:
        for reference in result.references:
            changed = ", on a modified benchmark" if result.benchmark and result.benchmark.modified else ""
            echo(f"{_protocol(result)} on {result.weights.name}: {reference.line()}{changed}")
    for result in results:
        echo(f"{result.protocol.name}: {result.file}")
    echo(f"\nsslbench leaderboard {out}  prints one table of all results there", err=True)


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


def _missing_floors(result: Result) -> list[str]:
    """Return the floors that are missing, with the reasons."""
    return [f"{_protocol(result)}: no floor '{name}': {reason}" for name, reason in result.missing_floors.items()]


def _protocol(result: Result) -> str:
    """Return the protocol, with the preset it was run with: 'knn (knn/dino)'."""
    noise = f", {100 * result.data.label_noise:g} % label noise" if result.data.label_noise else ""
    if result.preset is None:
        return result.protocol.name + noise
    return f"{result.protocol.name} ({result.preset.name}{', modified' if result.preset.modified else ''}){noise}"


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}"


def _interval(metric: MetricValue) -> str:
    return "" if metric.low is None or metric.high is None else f"{metric.low:.2f} .. {metric.high:.2f}"


def _selected(result: Result) -> str:
    """Return the selection, without details: 'k = 20 on held-out 10 % of train'."""
    first = next(((k, v) for k, v in result.selected.items() if isinstance(v, int | float)), None)
    if first is None:
        return ""
    where = f" on {result.selected['on']}" if "on" in result.selected else ""
    return f"{first[0]} = {first[1]:g}{where}"
