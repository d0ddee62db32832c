"""The observers that every run has."""

from collections.abc import Sequence
from pathlib import Path

from sslbench.train.observers.curve import Curve
from sslbench.train.observers.health import Health
from sslbench.train.observers.json_lines import JsonLines
from sslbench.train.observers.origins import Origins
from sslbench.train.observers.views import Views


def always(
    out: Path, *, mean: Sequence[float], std: Sequence[float]
) -> list[JsonLines | Views | Health | Origins | Curve]:
    """metrics.jsonl, views.png, warnings, origins of images; in the end curve.png, which reads what the first wrote.

    Args:
        out: folder of the run.
        mean: what views are normalised with, per channel.
        std: likewise.
    """
    views = Views(out / "views.png", mean=mean, std=std)
    return [JsonLines(out / "metrics.jsonl"), views, Health(), Origins(), Curve()]
