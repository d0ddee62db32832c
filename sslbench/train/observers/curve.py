"""Plot curve.png: loss, learning rate, scores and feature spectrum over the epochs."""

from pathlib import Path

from sslbench.train.observers import Observer, RunInfo, json_lines
from sslbench.weights.save import new_file

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
        if json_lines.read(self.out / "metrics.jsonl"):
            curve(self.out / "metrics.jsonl", self.out / "curve.png")


def curve(metrics: Path, target: Path) -> None:
    """Plot loss, learning rate and scores of evaluations over epochs, one below the other.

    Args:
        metrics: file written by `JsonLines`.
        target: PNG file to write.

    Raises:
        ValueError: the file has no records.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    records = json_lines.read(metrics)
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
