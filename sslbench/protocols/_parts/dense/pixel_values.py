"""Depth and normals of pixels as targets of dense heads: reading, metrics without intervals, notes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.arrays import BoolArray, FloatArray
from sslbench.data.groups import source_groups
from sslbench.data.loading.joint import Target
from sslbench.data.source import Source
from sslbench.data.wording import counted, some
from sslbench.errors import DataError
from sslbench.labels import LabelKind
from sslbench.metrics.intervals import Units, Values
from sslbench.metrics.summary import measures, summarise


def read_pixel_values(source: Source, index: int, size: tuple[int, int] | None = None) -> Target:
    """Return the depth or the normals of an image, float32 (k, H, W), nan where unknown.

    Raises:
        UnreadableImage: there are no complete values.
        DataError: they are of another size than the image, or impossible.
    """
    if source.pixel_values is None:
        raise DataError(f"{source.name} has no values of pixels")
    values = source.pixel_values.read_values(index, size=size)
    return np.ascontiguousarray(np.moveaxis(values, 2, 0))


def metrics_of(kind: LabelKind, rows: npt.NDArray[np.floating], test: Source, seed: int) -> tuple[Values, str]:
    """Return the metrics of rows (N, R) with intervals over the images that have values, and the leading one."""
    scored, groups = rows[:, 0] > 0, source_groups(test)
    found, headline, _ = summarise(
        kind,
        (),
        test.labels.values[scored],
        rows[scored],
        seed=seed,
        groups=None if groups is None else np.unique(groups[scored], return_inverse=True)[1],
    )
    return found, headline


def values_of(kind: LabelKind, rows: FloatArray) -> dict[str, float]:
    """Return the metrics of rows (N, R), without intervals."""
    scored = rows[rows[:, 0] > 0]
    found: dict[str, float] = {}
    for measure in measures(kind, np.zeros((len(scored), 0), dtype=np.int8), scored, Units.of(len(scored), None)):
        found |= dict(zip(measure.names, measure.statistic(np.ones((1, len(scored))))[0].tolist(), strict=True))
    return found


def without_values(scored: BoolArray, test: Source) -> tuple[str, ...]:
    """Return the note on test images without a scored pixel, False in `scored` (N,); () without any."""
    absent = [test.ids[index] for index in np.flatnonzero(~scored).tolist()]
    if not absent:
        return ()
    verb = "has" if len(absent) == 1 else "have"
    return (
        f"{counted(len(absent), 'test image')} {verb} no pixel to score, left out of all means: {some(absent, 5)}.",
    )


def cell_sums(target: Target, grid: tuple[int, int]) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]:
    """Return the sums (k, h, w) of the known values in the cells of a grid, and their numbers (h, w).

    >>> sums, numbers = cell_sums(np.array([[[1.0, 3.0, np.nan, 5.0]]], dtype=np.float32), (1, 2))
    >>> sums.tolist(), numbers.tolist()
    ([[[4.0, 5.0]]], [[2.0, 1.0]])
    """
    (rows, columns), (height, width) = grid, target.shape[1:]
    cells = (np.arange(height) * rows // height)[:, None] * columns + np.arange(width) * columns // width
    known = ~np.isnan(target).any(axis=0)
    numbers = np.bincount(cells[known], minlength=rows * columns)
    sums = [np.bincount(cells[known], weights=each[known], minlength=rows * columns) for each in target]
    return np.stack(sums).astype(np.float64).reshape(-1, *grid), numbers.astype(np.float64).reshape(grid)


def errors_of(selected: Mapping[str, Any]) -> dict[str, Any]:
    """Return a choice of a head by the negative of an error with the error itself.

    >>> errors_of({"lr": 0.1, "score": -2.0, "tried": {"lr=0.1": -2.0}})
    {'lr': 0.1, 'score': 2.0, 'tried': {'lr=0.1': 2.0}}
    """
    if not selected:
        return {}
    tried = {name: -value for name, value in selected["tried"].items()}
    return {**selected, "score": -selected["score"], "tried": tried}
