"""Panels of a plot, two beside each other, and the PNG that they are written to."""

from pathlib import Path
from typing import IO, TYPE_CHECKING

from sslbench.errors import ResultError
from sslbench.paths import not_written
from sslbench.results.records import replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31")  # Okabe and Ito
MARKERS = "osD^vP*X"


def panels(n: int) -> "tuple[Figure, list[Axes]]":
    """Return a figure with n empty panels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(2, n)
    rows = -(-n // columns)
    figure = Figure(figsize=(6.2 * columns, 4.2 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for axis in axes[n:]:
        axis.set_axis_off()
    return figure, axes[:n]


def finish_panel(axis: "Axes", title: str, unit: str) -> None:
    """Give a panel its title, unit, grid and legend."""
    axis.set_title(title, loc="left", fontsize=10)
    axis.set_ylabel(unit)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=8, frameon=False)


def write_png(figure: "Figure", path: Path) -> None:
    """Write a figure as PNG, replaced whole or not at all.

    Raises:
        ResultError: the file cannot be written.
    """

    def save(file: IO[bytes]) -> None:
        figure.savefig(file, format="png", dpi=110)

    try:
        replace_file(path, save)
    except OSError as error:
        raise ResultError(not_written(path, error)) from error
