"""CSV with the columns of timm's files of results (results-imagenet.csv)."""

from pathlib import Path

from sslbench.errors import ResultError
from sslbench.leaderboard.model import Board, measured
from sslbench.leaderboard.tables import number, write_text
from sslbench.text import csv_text

_HEADINGS = "model top1 top1_err top5 top5_err param_count img_size crop_pct interpolation benchmark layer".split()


def to_timm_csv(board: Board, path: Path) -> None:
    """Write a line for each result with a top-1 accuracy; `benchmark` and `layer` stand behind timm's columns.

    `param_count` is in millions, without a classifier. `crop_pct` is crop / resize, 1 for images that are not cropped.

    Raises:
        ResultError: no result has a top-1 accuracy.
    """
    lines = []
    for row, column, cell, _ in measured(board):
        top1, top5 = (cell.metrics[name].value if name in cell.metrics else None for name in ("top1", "top5"))
        if top1 is None:
            continue
        accuracies = [number(each) for v in (top1, top5) for each in (v, None if v is None else 100 - v)]
        images = cell.records[0].preprocessing
        counts = [record.costs.parameters for record in cell.records if record.costs and record.costs.parameters]
        crop, squash, resize = (_side(images.get(name)) for name in ("crop", "squash", "resize"))
        size = crop or squash or resize
        shown = [number(size), f"{crop / resize:.3f}" if crop and resize else "1.000" if size else ""]
        millions = number(counts[0] / 1e6 if counts else None)
        lines.append(
            [row.label, *accuracies, millions, *shown, images.get("interpolation", ""), column.name, row.layer]
        )
    if not lines:
        raise ResultError("no result has a top-1 accuracy, which timm's CSV holds", "Use --csv.")
    write_text(path, csv_text([_HEADINGS, *lines]))


def _side(size: object) -> float | None:
    """Return the first side of a size; None without one."""
    first = size[0] if isinstance(size, list | tuple) and size else size
    return float(first) if isinstance(first, int | float) else None
