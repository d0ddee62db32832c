"""Observers of every run."""

from collections.abc import Sequence
from pathlib import Path

from sslbench.train.observers import Observer
from sslbench.train.observers.curve import CurvePlot
from sslbench.train.observers.health import Health
from sslbench.train.observers.json_lines import JsonLines
from sslbench.train.observers.origins import Origins
from sslbench.train.observers.views import Views


def always(out: Path, *, mean: Sequence[float], std: Sequence[float]) -> list[Observer]:
    """Return the observers for metrics.jsonl, views.png, warnings, origins of images, and curve.png.

    Args:
        out: folder of the run.
        mean: mean of the views' normalisation, per channel.
        std: standard deviation of the views' normalisation, per channel.
    """
    views = Views(out / "views.png", mean=mean, std=std)
    return [JsonLines(out / "metrics.jsonl"), views, Health(), Origins(), CurvePlot()]
