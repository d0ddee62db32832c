"""Surface normals of pixels as a dense task, and the outcome of a row of scores.

Shapes: an output is a vector, and perhaps a concentration, (3 or 4, h, w); an image's row has the sums and the
histogram `metrics.dense.normals.COLUMNS`.
"""

import functools

import numpy as np
from PIL import Image
from torch import Tensor
from torch.nn import functional

from sslbench.arrays import FloatArray
from sslbench.data.loading.joint import Target
from sslbench.data.source import Source
from sslbench.metrics.dense import normals
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
from sslbench.protocols.normals.settings import Settings
from sslbench.results import Outcome
from sslbench.solvers.dense.losses import angular_loss
from sslbench.solvers.dense.windows import resized

_ZERO = 1e-12


def task(settings: Settings) -> DenseTask:
    """Return the task of predicting normals."""
    return DenseTask(
        name="normals",
        no_value="a normal of length 0 or NaN is unknown",
        outputs=4 if settings.uncertainty else 3,
        read=read_pixel_values,
        loss=functools.partial(_loss, settings.uncertainty),
        row=_row,
        value=_value,
        cells=cell_sums,
        drawn=_drawn,
        caption=lambda value: f"{-value:.0f} degrees",
        averaged=_unit,
        mirrored=mirrored,
    )


def mirrored(x: Tensor) -> Tensor:
    """Return normals (..., k, H, W) of a mirrored map: x changes its sign.

    >>> import torch
    >>> mirrored(torch.tensor([1.0, 2.0, 3.0]).reshape(3, 1, 1)).flatten().tolist()
    [-1.0, 2.0, 3.0]
    """
    sign = x.new_ones(x.shape[-3])
    sign[0] = -1
    return x * sign[:, None, None]


def _unit(outputs: Tensor) -> Tensor:
    """Return unit vectors (B, 3, H, W): what is averaged over flips."""
    return functional.normalize(outputs[:, :3], dim=1)


def _loss(uncertainty: bool, outputs: Tensor, targets: Tensor, update: int) -> Tensor:
    """Return the angular loss of the known pixels."""
    valid = ~targets.isnan().any(dim=1, keepdim=True)
    return angular_loss(outputs[:, :3], targets.nan_to_num(), valid, outputs[:, 3:] if uncertainty else None)


def _row(output: Tensor, target: Target) -> FloatArray:
    """Return the sums and the histogram of an image's angles; vectors are enlarged to the target, bilinearly."""
    height, width = target.shape[1:]
    found = resized(output[None, :3].float(), (height, width))[0].cpu().numpy()
    valid = np.asarray(~np.isnan(target).any(axis=0))
    # A mean of opposite vectors may vanish; any direction then counts, here that to the camera.
    found[2][(np.abs(found) < _ZERO).all(axis=0)] = -1.0
    return normals.normals_row(normals.angular_errors(found, target, valid))


def _drawn(output: Tensor, target: Target) -> tuple[Image.Image, Image.Image]:
    """Return the true and the predicted normals, x, y and z from -1 to 1 as red, green and blue; unknown is black."""
    found = functional.normalize(resized(output[None, :3].float(), (target.shape[1], target.shape[2])), dim=1)
    return _coloured(target), _coloured(found[0].cpu().numpy())


def _coloured(normals: Target) -> Image.Image:
    rgb = np.nan_to_num(127.5 * (normals + 1))
    return Image.fromarray(np.moveaxis(rgb.clip(0, 255).round().astype(np.uint8), 0, 2).copy())


def _value(rows: FloatArray) -> float:
    """Return the mean angle of all pixels, negative so that more is better."""
    return -headline("normals", np.zeros((len(rows), 0), dtype=np.int8), rows)


def outcome(row: DenseRow, test: Source, *, seed: int) -> Outcome:
    """Return metrics with intervals over images, and floors, of the scores of a row."""
    rows = row.rows.astype(np.float32)
    metrics, name = metrics_of("normals", rows, test, seed)
    floors = {floor: values_of("normals", scores) for floor, scores in row.floors.items()}
    return Outcome(
        metrics=metrics,
        headline=name,
        scores=rows,
        per_class={},
        train=-row.train,
        selected=errors_of(row.selected),
        chance=floors.pop("constant"),
        floors=floors,
        notes=(
            *row.notes,
            *without_values(row.rows[:, 0] > 0, test),
            "Metrics are of all pixels together, those called (images) are means over images; chance is the mean "
            "normal of train.",
        ),
        picture=row.picture,
        scored=int((row.rows[:, 0] > 0).sum()),
    )
