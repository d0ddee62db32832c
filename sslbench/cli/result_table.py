"""The table that `eval` ends with."""

from pathlib import Path

import click

from sslbench.results import Metric, Result


def print_results(results: list[Result], out: Path) -> None:
    """One row per result on stdout: the headline metric with its interval, what was chosen, and the floors."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    names = ["weights", "layer", "protocol", "metric", "value", "95 % interval", "train"]
    floors = [name for name in ("untrained", "pixels", "majority", "chance") if any(name in r.floors for r in results)]
    for name in names + floors + ["selected"]:
        table.add_column(name, justify="right" if name in ("value", "train", *floors) else "left", overflow="fold")
    for result in results:
        metric = result.metrics[result.headline]
        flags = [] if result.converged is not False else ["not converged"]
        flags += ["partial weights"] if result.weights.partial else []
        flags += [f"n = {result.data.test.n_used} of {result.data.test.n}"] if result.data.unreadable else []
        table.add_row(
            result.weights.name,
            result.layer,
            result.protocol.name,
            result.headline,
            _number(metric.value) + (f" ({', '.join(flags)})" if flags else ""),
            _interval(metric),
            _number(result.train),
            *[_number(result.floors.get(name, {}).get(result.headline)) for name in floors],
            _selected(result),
        )
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    console.print(table)
    for result in results:
        click.echo(f"{result.protocol.name}: {result.file}")
    click.echo(f"\nsslbench leaderboard {out}  makes one table of all results there", err=True)


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}"


def _interval(metric: Metric) -> str:
    return "" if metric.low is None or metric.high is None else f"{metric.low:.2f} .. {metric.high:.2f}"


def _selected(result: Result) -> str:
    """What was chosen, without the details that the record holds: 'k = 20 on held-out 10 % of train'."""
    first = next(((k, v) for k, v in result.selected.items() if isinstance(v, int | float)), None)
    if first is None:
        return ""
    where = f" on {result.selected['on']}" if "on" in result.selected else ""
    return f"{first[0]} = {first[1]:g}{where}"
