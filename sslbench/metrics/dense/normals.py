"""Surface normals: angles between predicted and true normals, in degrees.

`angle_sums` and `angle_histogram` reduce the angles of one image. The metrics are of all pixels of a set together (Bae
et al., iDisc and most papers) or means over images (probe3d); the values differ. The histograms of NYUv2's 654 images
take 47 MB.
"""

import dataclasses
from typing import Literal

import numpy as np
import numpy.typing as npt

from sslbench.arrays import BoolArray, FloatArray, Matrix
from sslbench.metrics.dense.pooling import means, pooled, quotient
from sslbench.metrics.measure import Measure
from sslbench.metrics.metric import RATE, Metric

Averaging = Literal["images", "pixels"]

BELOW = (5.0, 7.5, 11.25, 22.5, 30.0)
"""Angles in degrees below which, strictly, the share of pixels is counted."""
BINS = 18_000
"""Bins of the histogram, 0.01 degrees each."""

ANGLE_MEAN = Metric(
    "angle_mean", "Angular error, mean", "degrees", -1, (0.0, 180.0), needs="normals", labels=("normals",)
)
ANGLE_MEDIAN = dataclasses.replace(ANGLE_MEAN, name="angle_median", title="Angular error, median")
ANGLE_RMSE = dataclasses.replace(ANGLE_MEAN, name="angle_rmse", title="Angular error, root mean square")
ANGLE_BELOW = tuple(
    Metric(
        f"angle@{limit:g}",
        f"Pixels with an angular error below {limit:g} degrees",
        "%",
        1,
        RATE,
        needs="normals",
        labels=("normals",),
    )
    for limit in BELOW
)
NORMALS = (ANGLE_MEAN, ANGLE_MEDIAN, ANGLE_RMSE, *ANGLE_BELOW)
"""Metrics in the order of `normal_values`."""

STORED_BINS = 1_800
"""Bins of the histogram in a row, 0.1 degrees each; between their ends the median is interpolated."""
COLUMNS = (
    *("pixels", "angles", "squared angles", *(f"below {limit:g}" for limit in BELOW), "median"),
    *(f"{180 * place / STORED_BINS:g} degrees" for place in range(STORED_BINS)),
)
"""Columns of an image's row (1809,): its sums, see `angle_sums`, and its histogram."""

_WEIGHTINGS = 64  # at a time: each takes a histogram


def angular_errors(prediction: Matrix, target: Matrix, valid: BoolArray) -> FloatArray:
    """Return the angles of the valid pixels (P,) in degrees, 0 to 180.

    Vectors of any length are compared by direction; both must be in one frame (data sets differ in axes and signs).

    `prediction`: (3, H, W); `target`: (3, H, W); `valid`: (H, W), the pixels to score.

    >>> up, tilted = np.array([0.0, 0.0, 1.0]), np.array([0.0, 1.0, 1.0])
    >>> angular_errors(tilted[:, None, None], up[:, None, None], np.ones((1, 1), bool)).round(6).tolist()
    [45.0]
    """
    (a, b, c), (x, y, z) = chosen = [vectors[:, valid].astype(np.float64) for vectors in (prediction, target)]
    for name, vectors in zip(("predicted", "true"), chosen, strict=True):
        usable = np.count_nonzero(np.isfinite(vectors).all(axis=0) & vectors.any(axis=0))
        if wrong := vectors.shape[1] - usable:
            raise ValueError(f"{wrong} of {vectors.shape[1]} {name} normals are zero or not finite")
    # The arcus cosine of a rounded product would lose half of the digits of small angles.
    sine = np.sqrt((b * z - c * y) ** 2 + (c * x - a * z) ** 2 + (a * y - b * x) ** 2)
    return np.asarray(np.degrees(np.arctan2(sine, a * x + b * y + c * z)))


def angle_sums(angles: FloatArray) -> FloatArray:
    """Return the sums of one image (9,): pixels, angles, squared angles, pixels below each of `BELOW`; and the median.

    `angles`: (P,), in degrees.

    >>> angle_sums(np.array([4.0, 8.0])).tolist()
    [2.0, 12.0, 80.0, 1.0, 1.0, 2.0, 2.0, 2.0, 6.0]
    """
    below = [np.count_nonzero(angles < limit) for limit in BELOW]
    median = np.median(angles) if len(angles) else np.nan
    return np.array([len(angles), angles.sum(), np.sum(angles**2), *below, median], dtype=np.float64)


def angle_histogram(angles: FloatArray, bins: int = BINS) -> npt.NDArray[np.int32]:
    """Return the histogram (bins,) of the angles (P,) of one image, from which the median of many images follows."""
    places = np.minimum((angles * (bins / 180)).astype(np.int64), bins - 1)
    return np.bincount(places, minlength=bins).astype(np.int32)


def normals_row(angles: FloatArray) -> FloatArray:
    """Return the sums and the histogram of the angles (P,) of one image in the order of `COLUMNS`."""
    sums = angle_sums(angles)
    return np.concatenate([np.nan_to_num(sums), angle_histogram(angles, STORED_BINS)])


def measures_of_rows(rows: FloatArray) -> list[Measure]:
    """Return the metrics of N images from their rows (N, 1809), see `COLUMNS`: of all pixels, and means over images.

    The means over images are called angle_mean(images) and so on.

    >>> rows = np.stack([normals_row(np.array([4.0, 8.0])), normals_row(np.array([30.0, 30.0, 30.0, 30.0]))])
    >>> found = measures_of_rows(rows)
    >>> [dict(zip(each.names, each.statistic(np.ones((1, 2)))[0].tolist()))[each.names[0]] for each in found]
    [22.0, 18.0]
    """
    sums, histograms = rows[:, : len(COLUMNS) - STORED_BINS].copy(), rows[:, -STORED_BINS:].astype(np.int32)
    sums[sums[:, 0] == 0, -1] = np.nan  # no pixel, no median
    named = tuple(dataclasses.replace(metric, name=f"{metric.name}(images)") for metric in NORMALS)
    return [
        normal_measure(sums, histograms, "pixels"),
        dataclasses.replace(normal_measure(sums, histograms, "images"), metrics=named),
    ]


def normal_values(sums: FloatArray, median: FloatArray) -> FloatArray:
    """Return the metrics, (..., 8) for sums (..., 8) and medians (...), in the order of `NORMALS`.

    NaN without a pixel.
    """
    mean = quotient(sums[..., 1:], np.broadcast_to(sums[..., :1], sums[..., 1:].shape))
    return np.concatenate(
        [mean[..., :1], np.asarray(median)[..., None], np.sqrt(mean[..., 1:2]), mean[..., 2:]], axis=-1
    )


def histogram_median(counts: FloatArray) -> FloatArray:
    """Return the medians (R,) in degrees of histograms (R, bins), to the width of a bin; NaN if empty.

    >>> histogram_median(np.eye(1, BINS, k=1000)).round(3).tolist()
    [10.005]
    """
    # The pixels of a bin are taken to be spread evenly over it.
    up_to = counts.cumsum(axis=1)
    total, rows = up_to[:, -1], np.arange(len(counts))
    middle = []
    for rank in (np.floor((total + 1) / 2), np.ceil((total + 1) / 2)):  # one pixel, or the two in the middle
        place = np.argmax(up_to >= rank[:, None], axis=1)
        here = counts[rows, place]
        middle.append(place + quotient(rank - 0.5 - (up_to[rows, place] - here), here))
    return np.asarray((middle[0] + middle[1]) / 2 * (180 / counts.shape[1]))


def normal_measure(sums: FloatArray, histograms: npt.NDArray[np.int32], averaging: Averaging) -> Measure:
    """Return the metrics of N images as functions of the weights of the images, for `summary.with_intervals`.

    `sums`: (N, 9), see `angle_sums`; `histograms`: (N, bins), see `angle_histogram`; `averaging`: 'pixels': values of
    all pixels together, their median to 0.01 degrees. 'images': means of the images' values; images without a valid
    pixel are left out (probe3d counts them as 0).
    """
    if averaging == "images":
        values = normal_values(sums[:, :-1], sums[:, -1])
        return Measure(NORMALS, lambda weights: means(values, weights))

    def statistic(weights: FloatArray) -> FloatArray:
        return normal_values(pooled(sums[:, :-1], weights), histogram_median(pooled(histograms, weights)))

    return Measure(NORMALS, statistic, block=_WEIGHTINGS * len(sums))
