"""Depth of pixels as a dense task, its floors, and the outcome of a row of scores.

Shapes: an output is a depth (1, h, w); an image's row has the sums `metrics.dense.depth.COLUMNS`.
"""

import dataclasses
import functools

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from sslbench.arrays import BoolArray, FloatArray
from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.depth.values import implausible_unit
from sslbench.data.loading.joint import Target
from sslbench.data.maps.sizes import size_and_turn
from sslbench.data.source import Source
from sslbench.errors import DataError, SslbenchError
from sslbench.metrics import catalog
from sslbench.metrics.dense import depth
from sslbench.metrics.summary import headline
from sslbench.protocols._parts.dense.pixel_values import (
    cell_sums,
    errors_of,
    metrics_of,
    read_pixel_values,
    values_of,
    without_values,
)
from sslbench.protocols._parts.dense.run import DenseRow
from sslbench.protocols._parts.dense.task import DenseTask
from sslbench.protocols._parts.pictures import coloured
from sslbench.protocols.depth.settings import Scored, Settings
from sslbench.results import Outcome
from sslbench.solvers.dense.heads import depth_bins, depth_from_bins
from sslbench.solvers.dense.losses import gradient_loss, sig_loss
from sslbench.solvers.dense.windows import resized

_SAMPLE = 500
"""Training images at most whose depths say the range and the median."""


@dataclasses.dataclass(frozen=True)
class Range:
    """Depths of train, from up to 500 of its images.

    Attributes:
        low: smallest.
        high: largest.
        median: of the images' medians.
    """

    low: float
    high: float
    median: float


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of depths in metres.

    Attributes:
        bins: ends of the bins, to which predictions are clipped.
        scored: exclusive ends of the scored depths.
    """

    bins: tuple[float, float]
    scored: tuple[float, float]


def range_of(train: Source, seed: int) -> Range | None:
    """Return the range of train's depths; None if none is known. Files that cannot be read are listed later.

    Raises:
        DataError: they cannot be metres.
    """
    rows = np.arange(len(train))
    if len(rows) > _SAMPLE:
        rows = np.sort(np.random.default_rng(seed).choice(rows, _SAMPLE, replace=False))
    found: list[tuple[float, float, float]] = []
    for index in rows.tolist():
        try:
            values = read_pixel_values(train, index)
        except (SslbenchError, UnreadableImage):
            continue
        if (known := values[~np.isnan(values)]).size:
            found.append((float(known.min()), float(known.max()), float(np.median(known))))
    if not found:
        return None
    lows, highs, medians = zip(*found, strict=True)
    median = float(np.median(medians))
    if wrong := implausible_unit(min(lows), max(highs), median):
        raise DataError(
            f"depth: {train.name} has {wrong}",
            "Say which stored number is one metre: DATA?depth_scale=1000 for millimetres.",
        )
    return Range(min(lows), max(highs), median)


def check_region(train: Source, region: tuple[int, int, int, int] | None) -> None:
    """Refuse a region that does not lie in the training images; up to 500 of them are looked at.

    Raises:
        DataError: the region does not lie in an image.
    """
    if region is None:
        return
    _, _, right, bottom = region
    for index in range(min(len(train), _SAMPLE)):
        size = size_and_turn(train.images, index)[0]
        if size is not None and (size[0] < bottom or size[1] < right):
            raise DataError(
                f"depth: train_region={list(region)} reaches beyond {train.images.path(index)} of "
                f"{size[1]} x {size[0]} pixels",
                "Leave it out with train_region=null: the region is that of NYUv2's images of 640 x 480.",
            )


def limits_of(settings: Settings, known: Range | None) -> Limits:
    """Return the limits of bins and scored depths.

    Raises:
        DataError: no depth of train lies between the limits of the settings.
    """
    low, high = (settings.min_depth or 0.0), (np.inf if settings.max_depth is None else settings.max_depth)
    if known is None:  # the survey of the targets says so
        return Limits((low or 1e-3, 10.0 if high == np.inf else high), (low, high))
    if known.low >= high or known.high <= low:
        raise DataError(
            f"depth: train has depths of {known.low:.3g} to {known.high:.3g} m, "
            f"none between min_depth={low:g} and max_depth={high:g}",
            "Give other limits, or another DATA?depth_scale=.",
        )
    bins = (low if settings.min_depth else known.low, high if settings.max_depth else known.high)
    return Limits(bins if bins[0] < bins[1] else (0.5 * bins[0], 2 * bins[1]), (low, high))


def task(settings: Settings, limits: Limits) -> DenseTask:
    """Return the task of predicting depths between limits."""
    bins = depth_bins(settings.bins, *limits.bins, spacing=settings.spacing)
    return DenseTask(
        name="depth",
        no_value="a depth of 0 or NaN is unknown",
        outputs=settings.bins,
        read=functools.partial(_read, limits.scored, settings.scored),
        loss=functools.partial(_loss, settings.gradient, settings.mean_steps),
        row=functools.partial(_row, limits, settings),
        value=_value,
        cells=cell_sums,
        drawn=_drawn,
        caption=lambda value: f"RMSE {-value:.2f} m",
        activated=functools.partial(depth_from_bins, bins=bins, normalisation=settings.shares),
    )


def _read(limits: tuple[float, float], scored: Scored, source: Source, index: int, size: tuple[int, int]) -> Target:
    """Return the depth (1, H, W) of an image, nan outside the limits.

    Raises:
        UnreadableImage: there is no complete depth.
        DataError: it does not fit the image, or the region to score does not.
    """
    target = read_pixel_values(source, index, size)
    try:
        scored_region(target[0], limits, scored)
    except ValueError as error:
        raise DataError(f"{source.name}: {source.images.path(index)}: {error}") from error
    with np.errstate(invalid="ignore"):
        return np.where((target > limits[0]) & (target < limits[1]), target, np.float32(np.nan))


def scored_region(target: npt.NDArray[np.floating], limits: tuple[float, float], scored: Scored) -> BoolArray:
    """Return True for the pixels (H, W) that are scored.

    Raises:
        ValueError: the image has not the size that the region is defined for.
    """
    low, high = limits
    if scored == "all" or scored == "nyu":
        return depth.valid_depth(target, low=low, high=high, crop="none" if scored == "all" else "nyu")
    crop: depth.Crop = "garg" if scored.startswith("garg") else "eigen"
    if not scored.endswith("_kitti"):
        return depth.valid_depth(target, low=low, high=high, crop=crop)
    valid = np.zeros(target.shape, dtype=np.bool_)
    part = depth.kitti_benchmark_crop(*target.shape)
    valid[part] = depth.valid_depth(target[part], low=low, high=high, crop=crop)
    return valid


def _loss(gradient: float, mean_steps: int, outputs: Tensor, targets: Tensor, update: int) -> Tensor:
    """Return SigLoss, and the gradient loss with its weight, of the known pixels."""
    valid = ~targets.isnan()
    target = targets.nan_to_num(nan=1.0)
    loss = sig_loss(outputs, target, valid, mean_only=update < mean_steps)
    return loss + gradient * gradient_loss(outputs, target, valid) if gradient else loss


def _row(limits: Limits, settings: Settings, output: Tensor, target: Target) -> FloatArray:
    """Return the sums of an image's errors; the depth is enlarged to the target, then clipped."""
    height, width = target.shape[1:]
    found = resized(output[None].float(), (height, width))[0, 0].cpu().numpy()
    low, high = limits.bins
    alignment: depth.Alignment = "scale_shift" if settings.align == "affine" else settings.align
    valid = scored_region(target[0], limits.scored, settings.scored)
    return depth.depth_row(found, target[0], valid, low=low, high=high, alignment=alignment)


def _drawn(output: Tensor, target: Target) -> tuple[Image.Image, Image.Image]:
    """Return the true and the predicted depth in the colours of one range, that of both."""
    found = resized(output[None].float(), (target.shape[1], target.shape[2]))[0].cpu().numpy()
    both = np.concatenate([target.ravel(), found.ravel()])
    low, high = float(np.nanmin(both)), float(np.nanmax(both))
    return coloured(target[0], low, high), coloured(found[0], low, high)


def _value(rows: FloatArray) -> float:
    """Return the root mean square error, negative so that more is better."""
    return -headline("depth", np.zeros((len(rows), 0), dtype=np.int8), rows)


def outcome(
    row: DenseRow, test: Source, settings: Settings, limits: Limits, median: FloatArray | None, *, seed: int
) -> Outcome:
    """Return metrics with intervals over images, and floors, of the scores of a row.

    Args:
        row: scores.
        test: images that were scored.
        settings: alignment.
        limits: of depths.
        median: scores of predicting the median of train everywhere.
        seed: of the intervals.
    """
    rows = row.rows.astype(np.float32)
    metrics, name = metrics_of("depth", rows, test, seed)
    floors = {floor: values_of("depth", scores) for floor, scores in row.floors.items()}
    chance = floors.pop("constant")
    if median is not None:
        other = values_of("depth", median)
        chance = {
            metric: max((value, other[metric]), key=lambda v: catalog.find(metric).sign * v)
            for metric, value in chance.items()
        }
    aligned = {"none": (), "median": ("medians",), "affine": ("scale and shift, never a negative scale",)}[
        settings.align
    ]
    return Outcome(
        metrics=metrics,
        headline=name,
        scores=rows,
        per_class={},
        train=-row.train,
        selected=errors_of(row.selected),
        chance=chance,
        floors=floors,
        notes=(
            *row.notes,
            *without_values(row.rows[:, 0] > 0, test),
            f"Depths of {limits.bins[0]:.3g} to {limits.bins[1]:.3g} m are predicted; chance is the better of the mean "
            "and the median of train, for each metric.",
            *(f"Metrics in brackets are after alignment to the true depth of each image: {how}." for how in aligned),
        ),
        picture=row.picture,
        scored=int((row.rows[:, 0] > 0).sum()),
    )


def median_rows(test: Source, median: float, one: DenseTask) -> FloatArray:
    """Return the rows (N, R) of predicting one depth everywhere."""
    output = torch.full((1, 1, 1), median)
    return np.stack([one.row(output, read_pixel_values(test, index)) for index in range(len(test))])
