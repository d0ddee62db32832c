"""Boundaries as a dense task, and the outcome of a row of its scores.

Shapes: an output is a probability, (1, h, w). A target is (2, H, W): 1 for a boundary, 0 for none, nan where the
annotators disagree; and the annotators that mark the pixel, annotator k as bit k of a whole number.
"""

import functools

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from sslbench.arrays import BoolArray, FloatArray
from sslbench.data.groups import source_groups
from sslbench.data.loading.joint import Target
from sslbench.data.source import Source
from sslbench.errors import DataError
from sslbench.metrics.dense.contours import contour_counts, contour_measure
from sslbench.metrics.summary import summarise
from sslbench.protocols._parts.dense.pixel_values import cell_sums, read_pixel_values
from sslbench.protocols._parts.dense.run import DenseRow
from sslbench.protocols._parts.dense.task import DenseTask
from sslbench.protocols._parts.pictures import grey
from sslbench.protocols.edges.settings import Settings
from sslbench.results import Outcome
from sslbench.solvers.dense.losses import balanced_cross_entropy
from sslbench.solvers.dense.windows import resized

_MOST_ANNOTATORS = 24
"""Bits that a float32 holds exactly."""


def task(settings: Settings) -> DenseTask:
    """Return the task of predicting boundaries."""
    return DenseTask(
        name="edges",
        outputs=1,
        read=functools.partial(read_boundaries, settings.consensus),
        loss=_loss,
        row=functools.partial(_row, settings.tolerance),
        value=_ods,
        cells=_cells,
        drawn=_drawn,
        caption=lambda value: f"F {100 * value:.0f} %",
        activated=torch.sigmoid,
        check_totals=_check_totals,
    )


def read_boundaries(consensus: float, source: Source, index: int, size: tuple[int, int] | None = None) -> Target:
    """Return the target of an image, float32 (2, H, W).

    Raises:
        UnreadableImage: the boundaries cannot be read.
        DataError: they are of another size than the image, or there are more than 24 annotators.
    """
    marked = read_pixel_values(source, index, size) > 0
    if len(marked) > _MOST_ANNOTATORS:
        raise DataError(
            f"{source.name}: {source.ids[index]} has {len(marked)} annotators, more than {_MOST_ANNOTATORS}"
        )
    share = marked.mean(axis=0)
    label = np.where(share == 0, 0.0, np.where(share >= consensus, 1.0, np.nan))
    bits = np.tensordot(2.0 ** np.arange(len(marked)), marked, axes=1)
    return np.stack([label, bits]).astype(np.float32)


def annotations(target: Target) -> BoolArray:
    """Return the map of each annotator, (A, H, W), from a target; annotators without any boundary may be missing."""
    bits = target[1].astype(np.int64)
    return np.asarray((bits >> np.arange(int(bits.max()).bit_length())[:, None, None]) & 1 > 0)


def outcome(row: DenseRow, test: Source, *, seed: int) -> Outcome:
    """Return metrics with intervals over images, and floors, of the scores of a row."""
    scores = row.rows.astype(np.float32)
    metrics, headline, _ = summarise(
        "boundaries", (), test.labels.values, scores, seed=seed, groups=source_groups(test)
    )
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
        notes=row.notes,
        picture=row.picture,
    )


def _values(rows: FloatArray) -> dict[str, float]:
    measure = contour_measure(rows)
    return dict(zip(measure.names, measure.statistic(np.ones((1, len(rows))))[0].tolist(), strict=True))


def _ods(rows: FloatArray) -> float:
    return _values(rows)["boundary_ods"]


def _loss(outputs: Tensor, targets: Tensor, update: int) -> Tensor:
    return balanced_cross_entropy(outputs, targets[:, :1])


def _row(tolerance: float, output: Tensor, target: Target) -> FloatArray:
    return contour_counts(_enlarged(output, target), annotations(target), tolerance=tolerance).ravel()


def _enlarged(output: Tensor, target: Target) -> FloatArray:
    size = int(target.shape[1]), int(target.shape[2])
    return resized(output[None].float(), size)[0, 0].double().cpu().numpy()


def _cells(target: Target, grid: tuple[int, int]) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]:
    return cell_sums(target[:1], grid)


def _drawn(output: Tensor, target: Target) -> tuple[Image.Image, Image.Image]:
    """Return the boundaries, white where any annotator has one, and their probability."""
    return grey(target[1] > 0, 0.0, 1.0), grey(_enlarged(output, target), 0.0, 1.0)


def _check_totals(part: str, sums: FloatArray) -> None:
    """Refuse a part without any boundary.

    Raises:
        DataError: no pixel is a boundary.
    """
    if not sums.any():
        raise DataError(f"edges: no pixel of {part} is a boundary by enough annotators")
