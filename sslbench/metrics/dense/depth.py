"""Depth maps: accuracy below a ratio, relative, absolute and logarithmic errors, crops and alignment.

`depth_sums` reduces one image to eleven sums. `depth_values` turns sums into metrics: of each image, whose means are
what papers report on NYU and KITTI, or of the sums over all images. Depths are in any one unit (metres as a rule).
"""

import dataclasses
import math
from typing import Literal

import numpy as np

from sslbench.arrays import BoolArray, FloatArray, Matrix
from sslbench.metrics.dense.pooling import means, quotient
from sslbench.metrics.measure import Measure
from sslbench.metrics.metric import LOSS, RATE, Metric

Crop = Literal["none", "nyu", "garg", "eigen"]
Alignment = Literal["none", "median", "scale", "scale_shift"]

THRESHOLD = 1.25
"""Ratio of prediction and truth below which a pixel counts for d1; its square for d2, its cube for d3."""

D1 = Metric("d1", "Pixels within a factor of 1.25", "%", 1, RATE, needs="depth_maps", labels=("depth",))
D2 = dataclasses.replace(D1, name="d2", title="Pixels within a factor of 1.25^2")
D3 = dataclasses.replace(D1, name="d3", title="Pixels within a factor of 1.25^3")
ABS_REL = dataclasses.replace(D1, name="abs_rel", title="Absolute error, relative to depth", direction=-1, bounds=LOSS)
SQ_REL = dataclasses.replace(
    ABS_REL, name="sq_rel", title="Squared error, relative to depth", unit="units of the depths", label_units=True
)
DEPTH_RMSE = dataclasses.replace(SQ_REL, name="depth_rmse", title="Root mean square error of depth")
DEPTH_MAE = dataclasses.replace(SQ_REL, name="depth_mae", title="Mean absolute error of depth")
RMSE_LOG = dataclasses.replace(ABS_REL, name="rmse_log", title="Root mean square error of ln depth", unit="ln")
LOG10 = dataclasses.replace(ABS_REL, name="log10", title="Mean absolute error of log10 depth", unit="log10")
SILOG = dataclasses.replace(ABS_REL, name="silog", title="Scale-invariant error: standard deviation of ln errors")
DEPTH = (D1, D2, D3, ABS_REL, SQ_REL, DEPTH_RMSE, DEPTH_MAE, RMSE_LOG, LOG10, SILOG)
"""Metrics in the order of `depth_values`."""

COLUMNS = tuple(
    f"{name}{aligned}"
    for aligned in ("", " (median)", " (affine)")
    for name in (
        *("pixels", "below 1.25", "below 1.25^2", "below 1.25^3", "relative", "squared relative", "squared"),
        *("absolute", "ln", "absolute ln", "squared ln"),
    )
)
"""Columns of an image's row (33,): its sums as predicted, after alignment by medians, and by scale and shift."""

_ALIGNED = ("", "(median)", "(affine)")
_NYU_SIZE = (480, 640)
_NYU = (slice(45, 471), slice(41, 601))
_SHARES = {
    "garg": (0.40810811, 0.99189189, 0.03594771, 0.96405229),
    "eigen": (0.3324324, 0.91351351, 0.0359477, 0.96405229),
}
_KITTI_BENCHMARK = (352, 1216)


def crop_region(crop: Crop, height: int, width: int) -> tuple[slice, slice]:
    """Return the rows and columns of a map that are scored.

    >>> crop_region("garg", 352, 1216)
    (slice(143, 349, None), slice(43, 1172, None))
    """
    # The fractions of `garg` and `eigen` are taken of the map that is given. BTS gives the full image of KITTI, the
    # toolbox of AdaBins, BinsFormer and DINOv2 the benchmark crop (`kitti_benchmark_crop`); the scores differ.
    if crop == "none":
        return slice(0, height), slice(0, width)
    if crop == "nyu":
        if (height, width) != _NYU_SIZE:
            raise ValueError(f"the crop 'nyu' is defined for maps of 480 x 640, not {height} x {width}")
        return _NYU
    top, bottom, left, right = _SHARES[crop]
    return slice(int(top * height), int(bottom * height)), slice(int(left * width), int(right * width))


def kitti_benchmark_crop(height: int, width: int) -> tuple[slice, slice]:
    """Return rows and columns of KITTI's benchmark crop: 352 x 1216 at the lower edge, centred.

    >>> kitti_benchmark_crop(375, 1242)
    (slice(23, 375, None), slice(13, 1229, None))
    """
    rows, columns = _KITTI_BENCHMARK
    if height < rows or width < columns:
        raise ValueError(f"KITTI's benchmark crop is {rows} x {columns}; the image is {height} x {width}")
    left = (width - columns) // 2
    return slice(height - rows, height), slice(left, left + columns)


def valid_depth(target: Matrix, *, low: float, high: float, crop: Crop = "none") -> BoolArray:
    """Return True for the pixels (H, W) inside the crop whose depth is between two bounds, exclusively.

    `target`: (H, W), true depths; pixels without a measurement have 0, NaN or infinity.
    """
    valid = np.zeros(target.shape, dtype=np.bool_)
    region = crop_region(crop, *target.shape)
    valid[region] = (target[region] > low) & (target[region] < high)
    return valid


def align_depth(
    prediction: Matrix, target: Matrix, valid: BoolArray, alignment: Alignment, *, negative: bool = False
) -> tuple[float, float]:
    """Return the scale and shift that map predicted to true depths best.

    `prediction`: (H, W); `target`: (H, W); `valid`: (H, W), the pixels to fit; returns scale and shift; of several
    equally good ones (a constant prediction) those of least norm. NaN without a valid pixel.

    >>> align_depth(np.array([[1.0, 2.0]]), np.array([[5.0, 7.0]]), np.ones((1, 2), bool), "median")
    (4.0, 0.0)
    >>> scale, shift = align_depth(np.array([[1.0, 2.0]]), np.array([[5.0, 7.0]]), np.ones((1, 2), bool), "scale_shift")
    >>> round(scale, 6), round(shift, 6)
    (2.0, 3.0)
    """
    # Aligned and metric scores are not comparable.
    found, true = prediction[valid].astype(np.float64), target[valid].astype(np.float64)
    if alignment == "none":
        return 1.0, 0.0
    if not len(true):
        return math.nan, math.nan
    if alignment == "median":
        return float(np.median(true) / np.median(found)), 0.0
    columns = [found] if alignment == "scale" else [found, np.ones_like(found)]
    solution = np.linalg.lstsq(np.stack(columns, axis=1), true, rcond=None)[0].tolist()
    scale, shift = solution if alignment == "scale_shift" else (solution[0], 0.0)
    if scale < 0 and not negative:
        return 0.0, float(true.mean()) if alignment == "scale_shift" else 0.0
    return scale, shift


def depth_sums(prediction: Matrix, target: Matrix, valid: BoolArray) -> FloatArray:
    """Return the sums of one image (11,): its valid pixels, and the sums of ten functions of prediction and truth.

    The functions: below 1.25, 1.25^2 and 1.25^3; relative, squared relative, squared and absolute error; ln error, its
    absolute value and its square.

    `prediction`: (H, W), depths; clip them to the range of the data set after resizing (DINOv2 clips before); `target`:
    (H, W), true depths; `valid`: (H, W), the pixels to score.
    """
    found, true = prediction[valid].astype(np.float64), target[valid].astype(np.float64)
    for name, depths in (("predicted", found), ("true", true)):
        if wrong := int(np.count_nonzero(~(np.isfinite(depths) & (depths > 0)))):
            raise ValueError(f"{wrong} of {len(depths)} {name} depths are not positive and finite")
    ratio = np.maximum(found / true, true / found)
    error, logarithm = found - true, np.log(found / true)
    columns = [
        np.ones_like(true),
        *(ratio < THRESHOLD**power for power in (1, 2, 3)),
        *(np.abs(error) / true, error**2 / true, error**2, np.abs(error)),
        *(logarithm, np.abs(logarithm), logarithm**2),
    ]
    return np.array([column.sum() for column in columns], dtype=np.float64)


def depth_row(
    prediction: Matrix, target: Matrix, valid: BoolArray, *, low: float, high: float, alignment: Alignment = "none"
) -> FloatArray:
    """Return the sums of one image in the order of `COLUMNS`, those of other alignments 0.

    `prediction`: (H, W), depths, clipped here to the range, also after alignment; `target`: (H, W), true depths;
    `valid`: (H, W), the pixels to score.

    >>> true = np.array([[2.0, 4.0]])
    >>> row = depth_row(2 * true, true, true > 0, low=0.1, high=10.0, alignment="median")
    >>> dict(zip(COLUMNS, row.tolist()))["relative"], dict(zip(COLUMNS, row.tolist()))["relative (median)"]
    (2.0, 0.0)
    """
    row = np.zeros((len(_ALIGNED), len(COLUMNS) // len(_ALIGNED)))
    row[0] = depth_sums(np.clip(prediction, low, high), target, valid)
    if alignment != "none" and row[0, 0]:
        scale, shift = align_depth(prediction, target, valid, alignment)
        place = 1 if alignment == "median" else 2
        row[place] = depth_sums(np.clip(scale * prediction + shift, low, high), target, valid)
    return row.reshape(-1)


def measures_of_rows(rows: FloatArray) -> list[Measure]:
    """Return the metrics of N images from their rows (N, 33), see `COLUMNS`, as means over images.

    Those after alignment are called d1(median), d1(affine) and so on, and are there if a row has them.
    """
    blocks = np.split(rows, len(_ALIGNED), axis=1)
    found = [depth_measure(blocks[0])]
    for name, sums in zip(_ALIGNED[1:], blocks[1:], strict=True):
        if sums[:, 0].any():
            named = tuple(dataclasses.replace(metric, name=f"{metric.name}{name}") for metric in DEPTH)
            found.append(dataclasses.replace(depth_measure(sums), metrics=named))
    return found


def depth_values(sums: FloatArray) -> FloatArray:
    """Return the metrics, (..., 10) for sums (..., 11), in the order of `DEPTH`; NaN without a valid pixel.

    >>> sums = depth_sums(np.array([[1.1, 4.0]]), np.array([[1.0, 2.0]]), np.ones((1, 2), bool))
    >>> dict(zip([metric.name for metric in DEPTH[:4]], depth_values(sums)[:4].round(3).tolist()))
    {'d1': 0.5, 'd2': 0.5, 'd3': 0.5, 'abs_rel': 0.55}
    """
    mean = np.moveaxis(quotient(sums[..., 1:], np.broadcast_to(sums[..., :1], sums[..., 1:].shape)), -1, 0)
    *shares, relative, squared_relative, squared, absolute, logarithm, absolute_log, squared_log = mean
    variance = np.maximum(squared_log - logarithm**2, 0)  # rounding makes it negative where errors are equal
    logarithmic = (np.sqrt(squared_log), absolute_log / math.log(10), np.sqrt(variance))
    return np.stack([*shares, relative, squared_relative, np.sqrt(squared), absolute, *logarithmic], axis=-1)


def depth_measure(sums: FloatArray) -> Measure:
    """Return the metrics, means over N images, as functions of the weights of the images.

    `sums`: (N, 11), see `depth_sums`.

    >>> sums = np.stack([depth_sums(np.full((1, 1), p), np.ones((1, 1)), np.ones((1, 1), bool)) for p in (1.0, 3.0)])
    >>> measure = depth_measure(sums)
    >>> dict(zip(measure.names, measure.statistic(np.ones((1, 2)))[0].tolist()))["depth_rmse"]
    1.0
    """
    values = depth_values(sums)
    return Measure(DEPTH, lambda weights: means(values, weights))
