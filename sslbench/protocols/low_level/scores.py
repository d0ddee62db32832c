"""Signals of pixels as a dense task, and the outcome of a row of its scores."""

import functools
import math

import numpy as np
from PIL import Image
from torch import Tensor, nn

from sslbench.arrays import FloatArray
from sslbench.data.groups import source_groups
from sslbench.data.loading.joint import Target
from sslbench.data.signals import Signal, signal_of
from sslbench.data.source import Source
from sslbench.errors import DataError
from sslbench.metrics.dense.signals import signal_measures, signal_row
from sslbench.metrics.summary import summarise
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.dense.pixel_values import cell_sums, read_pixel_values, without_values
from sslbench.protocols._parts.dense.run import DenseRow
from sslbench.protocols._parts.dense.task import DenseTask
from sslbench.protocols._parts.pictures import grey
from sslbench.protocols._parts.signals import read_image
from sslbench.protocols.low_level.settings import Settings
from sslbench.results import Outcome
from sslbench.solvers.dense.windows import resized


def task(settings: Settings, preprocessing: Preprocessing) -> DenseTask:
    """Return the task of one signal of images that are decoded as for a backbone."""
    return DenseTask(
        name="low-level",
        outputs=1,
        read=functools.partial(read_signal, settings.signal, settings.sigma, preprocessing),
        loss=_loss,
        row=_row,
        value=_mean_correlation,
        cells=cell_sums,
        drawn=_drawn,
        caption=lambda value: f"correlation {value:.2f}",
        check_totals=_check_totals,
    )


def read_signal(
    signal: Signal | None,
    sigma: float,
    preprocessing: Preprocessing,
    source: Source,
    index: int,
    size: tuple[int, int] | None,
) -> Target:
    """Return the signal of an image at its own size, float32 (1, H, W): from its file, or computed.

    Raises:
        UnreadableImage: the image, or its file of numbers, cannot be read.
        DataError: the file's numbers cannot be used.
    """
    if source.pixel_values is not None:
        return read_pixel_values(source, index, size)
    return signal_of(read_image(preprocessing, source, index), signal or "edges", sigma)[None]


def outcome(row: DenseRow, test: Source, *, seed: int) -> Outcome:
    """Return metrics with intervals over images, and floors, of the scores of a row."""
    scores, known = row.rows.astype(np.float32), ~np.isnan(row.rows[:, 0])
    groups = source_groups(test)
    metrics, headline, _ = summarise("signal", (), test.labels.values, scores, seed=seed, groups=groups)
    floors = {name: _values(rows) for name, rows in row.floors.items()}
    return Outcome(
        metrics=metrics,
        headline=headline,
        scores=scores,
        per_class={},
        train=row.train,
        selected=row.selected,
        chance=floors.pop("constant"),
        floors=floors,
        notes=(*row.notes, *without_values(known, test)),
        picture=row.picture,
        scored=int(known.sum()),
    )


def _values(rows: FloatArray) -> dict[str, float]:
    (measure,) = signal_measures(rows)
    return dict(zip(measure.names, measure.statistic(np.ones((1, len(rows))))[0].tolist(), strict=True))


def _loss(outputs: Tensor, targets: Tensor, update: int) -> Tensor:
    """Return the mean absolute error over the known pixels; padding around a crop is unknown."""
    known = ~targets.isnan()
    return nn.functional.l1_loss(outputs[known], targets[known])


def _row(output: Tensor, target: Target) -> FloatArray:
    size = int(target.shape[1]), int(target.shape[2])
    return signal_row(resized(output[None], size)[0, 0].float().cpu().numpy(), target[0])


def _drawn(output: Tensor, target: Target) -> tuple[Image.Image, Image.Image]:
    """Return the signal and the predicted one, white at the largest value of the signal."""
    found = resized(output[None].float(), (target.shape[1], target.shape[2]))[0].cpu().numpy()
    high = float(np.nanmax(target))
    return grey(target[0], 0.0, high), grey(found[0], 0.0, high)


def _mean_correlation(rows: FloatArray) -> float:
    return float(np.nanmean(rows[:, 0])) if not np.isnan(rows[:, 0]).all() else math.nan


def _check_totals(part: str, sums: FloatArray) -> None:
    """Refuse a part without any signal.

    Raises:
        DataError: every image has one colour, or every map is 0.
    """
    if not sums.any():
        raise DataError(
            f"low-level: every {part} image is of one colour, or has a map of zeros, so there is no signal to predict"
        )
