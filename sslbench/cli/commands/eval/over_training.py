"""Table of the score over training, which `eval` prints for a folder of checkpoints."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from sslbench.cli.echo import echo
from sslbench.cli.tables import INTERVAL, print_table
from sslbench.leaderboard.over_training import TrainingCurve, TrainingPoint, training_curves, write_training_curves
from sslbench.results import Result
from sslbench.train.checkpoints import position, run_name


def show(folder: Path, results: Mapping[str, Sequence[Result]], out: Path) -> None:
    """Print a row per checkpoint and protocol, and write CSV and PNG beside the records.

    Args:
        folder: folder of the checkpoints.
        results: file of each checkpoint -> its results; [] where it could not be evaluated.
        out: folder of the records.
    """
    curves = training_curves([(position(Path(file)), own) for file, own in results.items()])
    if not curves:
        return
    _print(curves)
    for curve in curves:
        echo(_gain(curve))
    if len(results) == 1:
        echo(f"{folder} has one checkpoint: pretraining keeps more with keep=1000", err=True)
    table, picture = write_training_curves(curves, run_name(folder), out)
    echo(f"\n{table}\n{picture}")


def _print(curves: Sequence[TrainingCurve]) -> None:
    floors = list(dict.fromkeys(name for curve in curves for name in curve.first.floors))
    names = ("protocol", "layer", "update", "epoch", "metric")
    rows = [_cells(point, floors) for curve in curves for point in curve.points]
    print_table((*names, "value", INTERVAL, *floors), rows, names=names)


def _cells(point: TrainingPoint, floors: Sequence[str]) -> list[str]:
    result, score = point.result, point.score
    epoch = "" if point.at.epoch is None else f"{point.at.epoch:.4g}"
    interval = "" if score.low is None or score.high is None else f"{score.low:.2f} .. {score.high:.2f}"
    beside = [_number(result.floors.get(name, {}).get(result.headline)) for name in floors]
    fixed = [result.protocol.name, result.layer, str(point.at.step), epoch, result.headline]
    return [*fixed, _number(score.value), interval, *beside]


def _gain(curve: TrainingCurve) -> str:
    """Return the paired comparison of the last with the first checkpoint as a line; empty if there is none."""
    if curve.gain is None:
        return f"{curve.title}: no paired comparison of first and last"
    gain = curve.gain
    first, last = curve.points[0].at.step, curve.points[-1].at.step
    difference = f"{gain.difference:+.2f} ({gain.low:+.2f} .. {gain.high:+.2f})"
    return (
        f"{curve.title}: {gain.metric} of update {last} less update {first}: {difference}, paired over {gain.n} samples"
    )


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}"
