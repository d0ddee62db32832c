"""Errors under corruptions of a record, by corruption and severity, and their plot."""

import io
import re
from pathlib import Path

from sslbench.errors import ResultError
from sslbench.paths import not_written
from sslbench.results import MetricValue, Result, records

CURVES = ".corruptions.png"
"""Suffix of the plot beside a record."""
_PART = re.compile(r"corruption_error\((\w+),(\d)\)")
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31")  # Okabe and Ito
_STYLES = ("-", "--", ":")


def errors_by_severity(result: Result) -> dict[str, dict[int, MetricValue]]:
    """Return corruption -> severity -> error of a record; {} of a record without corruptions."""
    found: dict[str, dict[int, MetricValue]] = {}
    for name, value in result.metrics.items():
        if part := _PART.fullmatch(name):
            found.setdefault(part[1], {})[int(part[2])] = value
    return found


def write_curves(result: Result, out: Path) -> None:
    """Draw error over severity, a line per corruption with its 95 % interval, beside the record.

    Args:
        result: a record; of one without corruptions nothing is drawn.
        out: folder of the records.

    Raises:
        ResultError: the file cannot be written.
    """
    found = errors_by_severity(result)
    if not found:
        return
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    severities: set[int] = set()
    for i, (name, values) in enumerate(found.items()):
        drawn = [(at, each) for at, each in sorted(values.items()) if each.value is not None]
        places, colour = [at for at, _ in drawn], _COLOURS[i % len(_COLOURS)]
        style = _STYLES[i // len(_COLOURS) % len(_STYLES)]
        axes.plot(places, [each.value or 0.0 for _, each in drawn], style, marker="o", color=colour, label=name)
        low, high = ([getattr(each, end) for _, each in drawn] for end in ("low", "high"))
        axes.fill_between(places, low, high, color=colour, alpha=0.12, linewidth=0)
        severities |= set(places)
    top1 = result.metrics["top1"].value
    if top1 is not None:
        axes.axhline(100 - top1, color="#666666", linestyle="--", linewidth=1, label="no corruption")
    axes.set_xticks(sorted(severities))
    axes.set_ylim(0, 100)
    axes.set_xlabel("severity")
    axes.set_ylabel("top-1 error (%)")
    axes.set_title(f"{result.weights.name}, {result.layer}", fontsize="medium")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", fontsize="small", frameon=False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    path = records.path_of(result, out).with_suffix(CURVES)
    try:
        records.replace_file(path, picture.getvalue())
    except OSError as error:
        raise ResultError(not_written(path, error)) from error
