"""File metrics.jsonl (one JSON object per log record and per evaluation), and the picture of its curves."""

import json
from pathlib import Path

from sslbench.paths import new_file
from sslbench.results import plain
from sslbench.train.meter import LogRecord
from sslbench.train.observers import Observer, RunInfo, scalars


class JsonLines(Observer):
    """File of JSON lines, appended at once, so that a killed run leaves all its records.

    When a run continues, the records after its last checkpoint are removed: these updates are repeated, and no update
    is in the file twice.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def started(self, run: RunInfo) -> None:
        """Keep the records up to the update from which the run continues; a new run starts with an empty file."""
        self.keep_until(run.start)

    def keep_until(self, step: int) -> None:
        """Remove the records after an update; for 0 all of them, also that of an evaluation before the first."""
        records = [record for record in read(self.path) if step and record["step"] <= step]
        with new_file(self.path) as temporary:
            temporary.write_text("".join(map(_text, records)), encoding="utf-8")

    def line(self, line: LogRecord) -> None:
        """Append an object with step, epoch, loss, lr, ..."""
        self.append(scalars(line))

    def evaluated(self, record: dict[str, float | int]) -> None:
        """Append an object with step, epoch and the scores."""
        self.append(record)

    def append(self, record: dict[str, float | int]) -> None:
        """Append an object."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_text(record))


def _text(record: dict[str, float | int]) -> str:
    """Return a record as a line; numbers that are not finite, as after an overflow of fp16, are null: JSON has none."""
    return json.dumps(plain(record), allow_nan=False) + "\n"


def read(path: Path) -> list[dict[str, float | int]]:
    """Return the objects in a file, without a truncated last line; [] if the file does not exist."""
    if not path.is_file():
        return []
    records = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return records


_ROWS = (
    ("loss", "loss"),
    ("lr", "learning rate"),
    ("knn_top1", "kNN top-1 in %"),
    ("knn_mAP", "kNN mAP in %"),
    ("online_top1", "online linear\ntop-1 in %"),
    ("rankme", "RankMe"),
    ("alpha_req", "alpha-ReQ"),
)


class CurvePlot(Observer):
    """Plot of metrics.jsonl, drawn at the end of a run."""

    def started(self, run: RunInfo) -> None:
        """Store the folder of the run."""
        self.out = run.out

    def finished(self) -> None:
        """Draw the plot, if metrics.jsonl has records: a run without updates may have none."""
        if read(self.out / "metrics.jsonl"):
            curve(self.out / "metrics.jsonl", self.out / "curve.png")


def curve(metrics: Path, target: Path) -> None:
    """Plot loss, learning rate and scores of evaluations over epochs, one below the other."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    records = read(metrics)
    found = [(key, label, [(r["epoch"], r[key]) for r in records if key in r]) for key, label in _ROWS]
    curves = [(key, label, points) for key, label, points in found if points]
    if not curves:
        raise ValueError(f"{metrics} has no values to plot")
    figure = Figure(figsize=(7, 2.2 * len(curves) + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(curves), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (key, label, points) in zip(axes, curves, strict=True):
        few = len(points) < 30
        axis.plot(*zip(*points, strict=True), color="#2a6f97", linewidth=1.4, marker="o" if few else None, markersize=4)
        if key not in ("loss", "lr"):
            epoch, last = points[-1]
            axis.annotate(
                f"{last:.3g}" if key == "alpha_req" else f"{last:.1f}",
                (epoch, last),
                textcoords="offset points",
                xytext=(-4, -12),
                ha="right",
            )
        axis.set_ylabel(label)
        axis.yaxis.set_major_locator(MaxNLocator(5))
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("epoch")
    with new_file(target) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
