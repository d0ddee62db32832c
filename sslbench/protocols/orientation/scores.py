"""Orientations of pixels as a dense task, and the outcome of a row of its scores.

Shapes: an output is a vector of doubled angle (2, h, w) of any length; an image's row has the values
`metrics.dense.orientations.COLUMNS`.
"""

import colorsys
import functools

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from sslbench.arrays import FloatArray
from sslbench.data.loading.joint import Target
from sslbench.data.signals import orientation_of
from sslbench.data.source import Source
from sslbench.errors import DataError
from sslbench.metrics.dense.orientations import orientation_row
from sslbench.metrics.summary import headline
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.dense.pixel_values import cell_sums, errors_of, metrics_of, values_of, without_values
from sslbench.protocols._parts.dense.run import DenseRow
from sslbench.protocols._parts.dense.task import DenseTask
from sslbench.protocols._parts.signals import read_image
from sslbench.protocols.orientation.settings import Settings
from sslbench.results import Outcome
from sslbench.solvers.dense.losses import cosines
from sslbench.solvers.dense.windows import resized

_MOST_COSINE = 1 - 1e-4
"""Cosine at which the slope of the arcus cosine is still finite; VisBench has the same."""


def task(settings: Settings, preprocessing: Preprocessing) -> DenseTask:
    """Return the task of predicting orientations of images that are decoded as for a backbone."""
    return DenseTask(
        name="orientation",
        outputs=2,
        read=functools.partial(read_orientation, settings.sigma, preprocessing),
        loss=orientation_loss,
        row=_row,
        value=_value,
        cells=cell_sums,
        drawn=_drawn,
        caption=lambda value: f"{-value:.0f} degrees",
        check_totals=_check_totals,
        averaged=_unit,
        mirrored=mirrored,
    )


def read_orientation(
    sigma: float, preprocessing: Preprocessing, source: Source, index: int, size: tuple[int, int] | None
) -> Target:
    """Return the orientations of an image at its own size, float32 (2, H, W); see `orientation_of`.

    Raises:
        UnreadableImage: the image cannot be read.
    """
    return orientation_of(read_image(preprocessing, source, index), sigma)


def mirrored(x: Tensor) -> Tensor:
    """Return orientations (..., 2, H, W) of a mirrored map: an angle t becomes 180 degrees - t, so the sine turns.

    >>> import torch
    >>> mirrored(torch.tensor([0.6, 0.8]).reshape(2, 1, 1)).flatten().tolist() == torch.tensor([0.6, -0.8]).tolist()
    True
    """
    sign = x.new_ones(2)
    sign[1] = -1
    return x * sign[:, None, None]


def orientation_loss(outputs: Tensor, targets: Tensor, update: int) -> Tensor:
    """Return the mean doubled angle in radians between vectors (B, 2, H, W), weighted by the length of the targets.

    Unknown pixels (NaN, the padding around a crop) have no weight; without any weight the loss is 0.

    >>> import torch
    >>> along_x, oblique = torch.tensor([2.0, 0.0]), torch.tensor([0.0, 0.5])  # 45 degrees apart
    >>> round(float(orientation_loss(along_x[None, :, None, None], oblique[None, :, None, None], 0)), 4)
    1.5708
    """
    targets = targets.nan_to_num()
    weights = torch.hypot(targets[:, 0], targets[:, 1])
    if not weights.any():
        return outputs.sum() * 0
    cosine = cosines(outputs, targets)
    angle = cosine.clamp(-_MOST_COSINE, _MOST_COSINE).acos()
    loss: Tensor = (weights * angle).sum() / weights.sum()
    return loss


def outcome(row: DenseRow, test: Source, *, seed: int) -> Outcome:
    """Return metrics with intervals over images, and floors, of the scores of a row."""
    rows = row.rows.astype(np.float32)
    metrics, name = metrics_of("orientation", rows, test, seed)
    floors = {floor: values_of("orientation", scores) for floor, scores in row.floors.items()}
    return Outcome(
        metrics=metrics,
        headline=name,
        scores=rows,
        per_class={},
        train=-row.train,
        selected=errors_of(row.selected),
        chance=floors.pop("constant"),
        floors=floors,
        notes=(*row.notes, *without_values(row.rows[:, 0] > 0, test), "Chance is the mean orientation of train."),
        picture=row.picture,
        scored=int((row.rows[:, 0] > 0).sum()),
    )


def _unit(outputs: Tensor) -> Tensor:
    """Return unit vectors (B, 2, H, W): what is averaged over flips."""
    return functional.normalize(outputs, dim=1)


def _row(output: Tensor, target: Target) -> FloatArray:
    """Return the values of an image; vectors are enlarged to the target, bilinearly."""
    found = resized(output[None].float(), (target.shape[1], target.shape[2]))[0].cpu().numpy()
    return orientation_row(found, target)


def _value(rows: FloatArray) -> float:
    """Return the leading metric, negative so that more is better."""
    return -headline("orientation", np.zeros((len(rows), 0), dtype=np.int8), rows)


def _drawn(output: Tensor, target: Target) -> tuple[Image.Image, Image.Image]:
    """Return the true and the predicted orientations as hues, both as bright as the place is coherent."""
    found = resized(output[None].float(), (target.shape[1], target.shape[2]))[0].cpu().numpy()
    bright = np.nan_to_num(np.hypot(*target)).clip(0, 1)
    return _hues(target, bright), _hues(found, bright)


def _hues(vectors: Target, bright: Target) -> Image.Image:
    wheel = np.array([colorsys.hsv_to_rgb(place / 256, 1.0, 255.0) for place in range(256)])
    places = np.nan_to_num((np.arctan2(vectors[1], vectors[0]) / (2 * np.pi)) % 1 * 256).astype(np.int64) % 256
    return Image.fromarray((wheel[places] * bright[..., None]).round().astype(np.uint8))


def _check_totals(part: str, sums: FloatArray) -> None:
    """Refuse a part without any orientation.

    Raises:
        DataError: every image has one colour.
    """
    if not sums.any():
        raise DataError(f"orientation: every {part} image is of one colour, so there is no orientation to predict")
