"""`sslbench selective`."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sslbench.cli import terminal
from sslbench.cli.echo import echo
from sslbench.cli.flags import LocalPath, argument_options, flag
from sslbench.cli.tables import INTERVAL, print_table
from sslbench.errors import UsageError
from sslbench.leaderboard.selective import Selective, selective
from sslbench.metrics.catalog import find
from sslbench.metrics.selective import ConformalSets
from sslbench.results import plain
from sslbench.results.records import read

if TYPE_CHECKING:
    from sslbench.metrics.intervals import Interval


@click.command("selective")
@click.argument("record", type=LocalPath())
@argument_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    record: Path,
    calibration: Path | None = flag("Record of the same classifier on calibration samples; it adds sets of classes."),
    alpha: float = flag("Share of sets that may lack the class.", default=0.1, within="(0, 1)", show_default=True),
    penalty: float = flag(
        "Penalty of raps for each further place of a class.", default=0.01, within="[0, inf)", show_default=True
    ),
    free: int = flag("Places that raps does not penalise.", default=5, within="[0, inf)", show_default=True),
    seed: int = flag("Seed of aps, raps and intervals.", default=0, within="[0, 4294967295]", show_default=True),
    as_json: bool = flag("Print everything as JSON.", "--json", default=False),
) -> None:
    """Measure how well a classifier knows its errors, from the scores beside RECORD.

    AURC is the mean error of the most confident samples over all coverages. With --calibration, sets of classes are
    calibrated to have the true class of 1 - alpha of the samples (split conformal prediction: lac, aps, raps).

    \b
    sslbench selective results/linear/w-1f0c.json
    sslbench selective results/linear/w-1f0c.json --calibration more/linear/w-77e2.json
    """  # noqa: D301
    terminal.show_messages()
    typed = [
        f"--{name}"
        for name in ("alpha", "penalty", "free")
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]
    if typed and calibration is None:
        raise UsageError(
            f"{typed[0]} is of sets of classes, which need --calibration",
            "Run the evaluation with --test-data of calibration samples, and give its record.",
        )

    rules = [
        ConformalSets("lac", alpha),
        ConformalSets("aps", alpha, seed),
        ConformalSets("raps", alpha, seed, penalty, free),
    ]
    found = selective(read(record), None if calibration is None else read(calibration), rules=rules, seed=seed)
    if as_json:
        echo(json.dumps(plain(_plain(found)), indent=1, allow_nan=False))
    else:
        _print(found, alpha)


def _print(found: Selective, alpha: float) -> None:
    result = found.result
    echo(f"{result.weights.name}, {result.protocol.name}, layer {result.layer}, {found.n:,} samples")
    echo(f"confidence: {found.confidence}")
    rows = [[name, *_cells(interval)] for name, interval in found.metrics.items()]
    print_table(("metric", "value", INTERVAL), rows, names=("metric",))
    if found.sets:
        calibrated = found.sets[0].calibrated
        echo(f"sets for {100 * (1 - alpha):g} % coverage, calibrated on {calibrated:,} samples")
        rows = [
            [sets.rule.rule, name, *_cells(interval)] for sets in found.sets for name, interval in sets.metrics.items()
        ]
        print_table(("rule", "metric", "value", INTERVAL), rows, names=("rule", "metric"))
        if (likely := found.sets[0].likely) is not None:
            echo(f"coverage of exchangeable samples: {likely[0]:.2f} .. {likely[1]:.2f} (95 %)")
    if found.trainings > 1:
        echo(f"Means over {found.trainings} trainings: the interval covers other trainings and other test samples.")
    if found.half:
        echo("Scores of more than 100 classes are stored in half precision: the third digit may differ.")


def _cells(interval: "Interval") -> list[str]:
    value, low, high = interval
    return [f"{value:.2f}", "n/a" if math.isnan(low) else f"{low:.2f} .. {high:.2f}"]


def _plain(found: Selective) -> dict[str, Any]:
    def numbers(metrics: "dict[str, Interval]") -> dict[str, Any]:
        return {
            name: {"value": value, "low": low, "high": high, "unit": find(name).text}
            for name, (value, low, high) in metrics.items()
        }

    result = found.result
    return {
        "record": {"file": result.file, "id": result.id, "weights": result.weights.name, "layer": result.layer},
        "protocol": result.protocol.name,
        "n": found.n,
        "trainings": found.trainings,
        "confidence": found.confidence,
        "half": found.half,
        "metrics": numbers(found.metrics),
        "sets": [
            {
                "rule": sets.rule,
                "calibrated": sets.calibrated,
                "metrics": numbers(sets.metrics),
                "likely_coverage": sets.likely,
            }
            for sets in found.sets
        ],
    }
